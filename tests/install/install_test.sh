#!/usr/bin/env bash
# One case of the tests of the installed library; CMakeLists.txt beside this lists them and sets SOURCE, BUILD, CC, CXX, NM, AR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case=$1
work=$BUILD/tests/install
prefix=$work/moved

fail() { echo "$1" >&2; exit 1; }

pkg_config() { PKG_CONFIG_LIBDIR=$(dirname "$(find "$prefix" -name fovea.pc)") pkg-config "$@"; }

# Whether a program needs the shared library at run time.
needs_shared() { readelf -d "$1" | grep -q 'NEEDED.*libfovea'; }

# A consumer of another build system knows nothing of instruction sets or of how the library was compiled.
check_flags() {
  if grep -E -- '(^|[" ])-(m|f|O|W)[a-z0-9]' <<< "$1"; then fail "flags leak to the consumer"; fi
}

# consumer FORM LANGUAGE [cmake arguments]
consumer() {
  rm -rf "$work/$case"
  cmake -S "$here/consumer" -B "$work/$case" -G "${generator:-Ninja}" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_CXX_COMPILER="$CXX" -DFORM="$1" -DCONSUMER_LANGUAGE="$2" "${@:3}"
  cmake --build "$work/$case"
  check_flags "$(grep '"command"' "$work/$case/compile_commands.json" | grep -o '.*consumer/main[^ ]*$')"
  "$work/$case/consumer"
}

case $case in
  moved_prefix)
    rm -rf "$work/first" "$prefix"
    cmake --install "$BUILD" --prefix "$work/first"
    mv "$work/first" "$prefix"
    if grep -rI "$work/first\|$SOURCE" "$prefix"; then fail "installed files name folders of this machine"; fi
    ;;
  pkg_config_static)
    line=$(pkg_config --static --cflags --libs fovea)
    check_flags "$line"
    # shellcheck disable=SC2086
    "$CC" -std=c99 -pedantic-errors -Wall -Wextra -Werror "$here/consumer/main.c" $line -o "$work/$case"
    if needs_shared "$work/$case"; then fail "linked the shared library"; fi
    "$work/$case"
    ;;
  pkg_config_shared)
    line=$(pkg_config --cflags --libs fovea-shared)
    check_flags "$line"
    # shellcheck disable=SC2086
    "$CC" -std=c99 "$here/consumer/main.c" $line -o "$work/$case"
    needs_shared "$work/$case" || fail "did not link the shared library"
    LD_LIBRARY_PATH=$(pkg_config --variable=libdir fovea-shared) "$work/$case"
    ;;
  find_package_static)
    consumer fovea::fovea C -DCMAKE_PREFIX_PATH="$prefix"
    if needs_shared "$work/$case/consumer"; then fail "linked the shared library"; fi
    ;;
  find_package_shared)
    consumer fovea::fovea_shared C -DCMAKE_PREFIX_PATH="$prefix"
    needs_shared "$work/$case/consumer" || fail "did not link the shared library"
    ;;
  find_package_cxx)
    consumer fovea::fovea CXX -DCMAKE_PREFIX_PATH="$prefix"
    ;;
  add_subdirectory)
    # With CMake's own default generator, which knows less of the order of things than Ninja; the library as it is built for itself, the
    # consumer without a flag.
    generator="Unix Makefiles" consumer fovea::fovea C -DFOVEA_SOURCE="$SOURCE" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=
    ;;
  clashing_names)
    # A second archive defines every internal name of this one; both are linked, in either order.
    archive=$(find "$prefix" -name libfovea.a)
    names=$("$NM" "$archive" | awk '$2 ~ /[tTdDrRbB]/ && $3 ~ /^_ZN5fovea[A-Za-z0-9_]*$/ {print $3}' | sort -u)
    (($(wc -w <<< "$names") > 20)) || fail "found too few internal names: $names"
    mkdir -p "$work/$case"
    cd "$work/$case"
    for name in $names; do echo "int $name = 1;"; done > names.c
    echo 'int clash(void) { return 0; }' >> names.c
    "$CC" -c names.c -o names.o
    rm -f libclash.a
    "$AR" rc libclash.a names.o
    { sed 's/int main(void)/static int attention(void)/' "$here/consumer/main.c"
      echo 'int clash(void); int main(void) { return attention() + clash(); }'; } > main.c
    for first in libclash.a ""; do
      # shellcheck disable=SC2046
      "$CC" -std=c99 main.c $first $(pkg_config --static --cflags --libs fovea) libclash.a -o main
      ./main
    done
    ;;
  *) fail "unknown case $case" ;;
esac
