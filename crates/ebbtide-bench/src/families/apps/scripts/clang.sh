# clang compiles C++ files, one after the other; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
cd "$dir"
n=0
while [ $n -lt "$1" ]; do
    cat >f$n.cc <<END
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct Step { std::map<std::string, std::vector<int>> rows; int run(int x) { rows[std::to_string(x)].push_back(N); return Step<N - 1>().run(x + N); } };
template <> struct Step<0> { int run(int x) { return x; } };
int file_$n(int x) {
    std::unordered_map<int, std::function<int(int)>> calls;
    calls[$n] = [](int y) { return Step<20>().run(y); };
    return calls[$n](x);
}
END
    clang++ -std=c++17 -O2 -c f$n.cc
    n=$((n + 1))
done
[ "$(ls ./*.o | wc -l)" = "$n" ]
echo "done $n"
