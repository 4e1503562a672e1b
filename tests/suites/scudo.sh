# what: the tests of Scudo's C and C++ functions, from LLVM, with `harden=on`
# source: crate scudo-sys 0.2.2
# needs: g++:g++ /usr/include/gtest/gtest.h:libgtest-dev
# conf: harden=on
#
# Scudo is a hardened allocator: its tests expect the end of a program at the second free.

scudo="$SRC/scudo-standalone"
# Of Clang, and of Android's C library.
{
    echo '#define __has_warning(name) 0'
    for name in disable enable iterate; do echo "#pragma weak malloc_$name"; done
} > clang.h
for name in c cpp; do
    g++ -std=c++17 -O1 -w -include clang.h -fno-builtin -I"$scudo" -I"$scudo/include" "$scudo/tests/wrappers_${name}_test.cpp" "$scudo"/tests/scudo_unit_test_main.cpp \
        -lgtest -lpthread -o "wrappers_$name"
    "./wrappers_$name" --gtest_list_tests | while read -r word _; do
        why=
        case $word in
            *.) group=$word ;;
            MallocIterateBoundary | MallocDisableDeadlock | Fork | DisableForkEnable)
                echo "leave $group$word (functions of Android's C library)" ;;
            AlignedAlloc) why="expects EINVAL for a size that is no multiple of the alignment" ;;
            MallOpt) why="expects that mallopt knows settings of Scudo" ;;
            MallInfo) why="expects hblkhd, the bytes mapped for large allocations, to be above 0 without one" ;;
            MallocInfo) why="expects the text of Scudo's malloc_info" ;;
            New) why="expects that delete[] of a single object ends the program (docs/limits.md)" ;;
            *) echo "test $group$word: ./wrappers_$name --gtest_filter=$group$word" ;;
        esac
        [ -z "$why" ] || echo "differs $group$word ($why): ./wrappers_$name --gtest_filter=$group$word"
    done
done
