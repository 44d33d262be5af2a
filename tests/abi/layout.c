/* Prints size and place of every public struct and field and the value of every constant: what layout.txt pins. */
#include <stdio.h>

#include "fovea/fovea.h"

#define STRUCT(type) printf(#type " size %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " offset %zu size %zu\n", offsetof(type, field), sizeof(((type *)0)->field))
#define VALUE(name) printf(#name " %lld\n", (long long)(name))
#define TENSOR(field) FIELD(fovea_tensor, field)
#define TILE(field) FIELD(fovea_score_tile, field)
#define PARAMS(field) FIELD(fovea_params, field)
#define EXECUTOR(field) FIELD(fovea_executor, field)
#define OPTIONS(field) FIELD(fovea_options, field)

int main(void) {
  STRUCT(fovea_tensor);
  TENSOR(data);
  TENSOR(stride);
  TENSOR(dtype);
  TENSOR(reserved);

  STRUCT(fovea_score_tile);
  TILE(score);
  TILE(row_stride);
  TILE(col_stride);
  TILE(rows);
  TILE(cols);
  TILE(batch);
  TILE(head);
  TILE(row0);
  TILE(col0);
  TILE(q);
  TILE(k);
  TILE(ldq);
  TILE(ldk);
  TILE(dim_k);

  STRUCT(fovea_params);
  PARAMS(struct_size);
  PARAMS(flags);
  PARAMS(batch);
  PARAMS(heads_q);
  PARAMS(heads_kv);
  PARAMS(seq_q);
  PARAMS(seq_kv);
  PARAMS(dim_k);
  PARAMS(dim_v);
  PARAMS(q);
  PARAMS(k);
  PARAMS(v);
  PARAMS(out);
  PARAMS(weights);
  PARAMS(lse);
  PARAMS(lse_stride);
  PARAMS(scale);
  PARAMS(softcap);
  PARAMS(causal);
  PARAMS(align);
  PARAMS(window_left);
  PARAMS(window_right);
  PARAMS(mask);
  PARAMS(alibi_slopes);
  PARAMS(sinks);
  PARAMS(seqlens_q);
  PARAMS(seqlens_kv);
  PARAMS(cu_seqlens_q);
  PARAMS(cu_seqlens_kv);
  PARAMS(score);
  PARAMS(score_user);
  PARAMS(score_mode);
  PARAMS(page_size);
  PARAMS(block_table);
  PARAMS(block_table_stride);
  PARAMS(num_pages);
  PARAMS(k_scale);
  PARAMS(v_scale);

  STRUCT(fovea_executor);
  EXECUTOR(struct_size);
  EXECUTOR(num_workers);
  EXECUTOR(user);
  EXECUTOR(parallel_for);

  STRUCT(fovea_options);
  OPTIONS(struct_size);
  OPTIONS(flags);
  OPTIONS(isa);
  OPTIONS(num_threads);
  OPTIONS(executor);
  OPTIONS(tuning);

  VALUE(FOVEA_OK);
  VALUE(FOVEA_ERR_NULL_POINTER);
  VALUE(FOVEA_ERR_STRUCT_SIZE);
  VALUE(FOVEA_ERR_INVALID_ARGUMENT);
  VALUE(FOVEA_ERR_INVALID_SIZE);
  VALUE(FOVEA_ERR_INVALID_STRIDE);
  VALUE(FOVEA_ERR_INVALID_DTYPE);
  VALUE(FOVEA_ERR_OVERLAP);
  VALUE(FOVEA_ERR_WORKSPACE);
  VALUE(FOVEA_ERR_OUT_OF_MEMORY);
  VALUE(FOVEA_ERR_UNSUPPORTED);
  VALUE(FOVEA_ERR_ISA_UNAVAILABLE);

  VALUE(FOVEA_F32);
  VALUE(FOVEA_F16);
  VALUE(FOVEA_BF16);
  VALUE(FOVEA_BOOL);
  VALUE(FOVEA_I8);
  VALUE(FOVEA_Q8_0);
  VALUE(FOVEA_Q4_0);

  VALUE(FOVEA_ISA_AUTO);
  VALUE(FOVEA_ISA_SCALAR);
  VALUE(FOVEA_ISA_AVX2);
  VALUE(FOVEA_ISA_AVX512);
  VALUE(FOVEA_ISA_AVX512_BF16);
  VALUE(FOVEA_ISA_AVX512_FP16);
  VALUE(FOVEA_ISA_AMX);
  VALUE(FOVEA_ISA_NEON);
  VALUE(FOVEA_ISA_NEON_BF16);
  VALUE(FOVEA_ISA_SVE);
  VALUE(FOVEA_ISA_SVE_BF16);

  VALUE(FOVEA_ALIGN_NONE);
  VALUE(FOVEA_ALIGN_TOP_LEFT);
  VALUE(FOVEA_ALIGN_BOTTOM_RIGHT);

  VALUE(FOVEA_SCORE_NONE);
  VALUE(FOVEA_SCORE_MODIFY);
  VALUE(FOVEA_SCORE_REPLACE);

  VALUE(FOVEA_SCORE_TILE_MAX);
  VALUE(FOVEA_MAX_THREADS);
  VALUE(FOVEA_NO_AMX);
  VALUE(FOVEA_IGNORE_ENV);
  VALUE(FOVEA_FAST_MATH16);
  return 0;
}
