# what: the C library's own tests of malloc (malloc/tst-*)
# source: debian glibc
# needs: gcc:gcc
#
# They are compiled outside of glibc's tree: with glibc's support library, and without its internal headers where the system has one.

mkdir support tests
cat > prelude.h <<'END'
#include <limits.h>
#define libc_hidden_proto(...)
#define libc_hidden_def(...)
#define attribute_hidden
#ifndef __always_inline
#define __always_inline inline __attribute__ ((__always_inline__))
#endif
END
: > config.h
flags="-O2 -g -w -D_GNU_SOURCE -DTEST_NO_MALLOPT -DTIMEOUTFACTOR=5 -D_STACK_GROWS_DOWN=1 -include prelude.h -I."
for dir in . support include sysdeps/generic; do flags+=" -idirafter $SRC/$dir"; done

# What does not compile is not needed, or its tests will not link.
compile() { gcc $flags -c "$1" -o "support/$(basename "$1" .c).o" 2> "support/$(basename "$1" .c).err" || true; }
link() { gcc $flags -fno-builtin "$1" support.a -lpthread -o "tests/$(basename "$1" .c)" 2> "tests/$(basename "$1" .c).err" || true; }
export -f compile link
export flags SRC
find "$SRC/support" -maxdepth 1 -name '*.c' ! -name 'tst-*' ! -name '*container.c' ! -name 'links-dso*' -print0 | xargs -0 -P2 -I{} bash -c 'compile {}'
# The paths of glibc's own build.
sed -n 's/^const char \(support_[a-z_]*\)\[\].*/const char \1[] = "\/none";/p' "$SRC/support/support_paths.c" > support_paths.c
compile support_paths.c
ar rc support.a support/*.o
find "$SRC/malloc" \( -name 'tst-*.c' -o -name mallocbug.c \) -print0 | xargs -0 -P2 -I{} bash -c 'link {}'

for path in "$SRC"/malloc/tst-*.c "$SRC/malloc/mallocbug.c"; do
    name=$(basename "$path" .c)
    case $name in
        tst-interpose*) echo "leave $name (the program defines its own malloc)" ;;
        tst-malloc-usable*) echo "leave $name (needs MALLOC_CHECK_, glibc's debugging of malloc)" ;;
        *)
            if [ ! -x "tests/$name" ]; then
                echo "leave $name (needs symbols of glibc's own build)"
                continue
            fi
            case $name in
                tst-dynarray-fail) why="the address space is limited to 5 MiB; Ebbtide needs 64 MiB (docs/limits.md)" ;;
                tst-malloc-backtrace) why="writes before a block, and expects the message of glibc's check" ;;
                tst-malloc-stats-cancellation) why="expects the text of glibc's malloc_stats" ;;
                tst-malloc-thread-fail) why="reads errno after posix_memalign, which returns the error and sets no errno in Ebbtide" ;;
                tst-mallocfork2) why="fork in a signal handler that interrupted malloc hangs (docs/limits.md)" ;;
                tst-safe-linking) why="overwrites the pointers of glibc's free lists, and expects the message of glibc's check" ;;
                *) why= ;;
            esac
            command="tests/$name"
            [ "$name" != tst-mallocfork2 ] || command="timeout -s KILL 20 tests/$name"
            if [ -n "$why" ]; then echo "differs $name ($why): $command"; else echo "test $name: $command"; fi
            ;;
    esac
done
