# what: the tests of Scudo's C and C++ functions, from LLVM
# source: crate scudo-sys 0.2.2
# needs: g++:g++ /usr/include/gtest/gtest.h:libgtest-dev

scudo="$SRC/scudo-standalone"
# Of Clang, and of Android's C library.
{
    echo '#define __has_warning(name) 0'
    for name in disable enable iterate; do echo "#pragma weak malloc_$name"; done
} > clang.h
for name in c cpp; do
    g++ -std=c++17 -O2 -w -include clang.h -fno-builtin -I"$scudo" -I"$scudo/include" "$scudo/tests/wrappers_${name}_test.cpp" "$scudo"/tests/scudo_unit_test_main.cpp \
        -lgtest -lpthread -o "wrappers_$name"
    "./wrappers_$name" --gtest_list_tests | while read -r word _; do
        case $word in
            *.) group=$word ;;
            MallocIterateBoundary | MallocDisableDeadlock | Fork | DisableForkEnable)
                echo "leave $group$word (functions of Android's C library)" ;;
            *) echo "test $group$word: ./wrappers_$name --gtest_filter=$group$word" ;;
        esac
    done
done
