# what: the tests of Scudo's C and C++ functions, from LLVM
# source: crate scudo-sys 0.2.2
# needs: g++:g++ /usr/include/gtest/gtest.h:libgtest-dev

scudo="$SRC/scudo-standalone"
for name in c cpp; do
    g++ -std=c++17 -O2 -w -fno-builtin -I"$scudo" -I"$scudo/include" "$scudo/tests/wrappers_${name}_test.cpp" "$scudo"/tests/scudo_unit_test_main.cpp \
        -lgtest -lpthread -o "wrappers_$name"
    "./wrappers_$name" --gtest_list_tests | while read -r word _; do
        case $word in
            *.) group=$word ;;
            *) echo "test $group$word: ./wrappers_$name --gtest_filter=$group$word" ;;
        esac
    done
done
