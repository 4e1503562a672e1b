# what: jemalloc's integration tests of the standard functions
# source: debian jemalloc
# needs: gcc:gcc g++:g++ make:make
#
# They link jemalloc for its control interface. The library in front of it serves malloc and its family.

cp -r "$SRC" tree
cd tree
./configure > configure.log
make -j2 tests_integration > make.log
cd ..
tests() { find tree/test/integration -type f -perm -u+x ! -name '*.sh' -printf '%P\n' | sort; }
for name in $(tests); do
    case $name in
        aligned_alloc | malloc | overflow | posix_memalign | cpp/basic) echo "test $name: env LD_LIBRARY_PATH=tree/lib tree/test/integration/$name" ;;
        cpp/infallible_new*) echo "leave $name (an option of jemalloc)" ;;
        *) echo "leave $name (jemalloc's own interface or figures)" ;;
    esac
done
