#!/bin/sh
# Builds the allocators that `ebbtide bench` compares with, each as a
# preloadable library in target/release. A peer that fails to build is named
# and left out. Arguments: the peers to build (default: all).
#
# Needs: cargo, a C and C++ compiler, make, cmake.
cd "$(dirname "$0")" || exit 1
here=$(pwd)
export CARGO_TARGET_DIR="$here/target"
[ $# -gt 0 ] || set -- jemalloc mimalloc3 mimalloc-pprof snmalloc tcmalloc
failed=
for peer; do
    echo "== $peer"
    log="$CARGO_TARGET_DIR/$peer.log"
    mkdir -p "$CARGO_TARGET_DIR"
    if (cd "$here/$peer" && cargo build --release) >"$log" 2>&1; then
        ls "$CARGO_TARGET_DIR/release/libpeer_$(echo "$peer" | tr - _).so"
    else
        failed="$failed $peer"
        tail -n 3 "$log"
        echo "$peer: not built; the log is $log"
    fi
done
[ -z "$failed" ] || echo "left out:$failed"
exit 0
