# what: cargo and rustc build a crate of this project and its tests, which run
# needs: cargo:cargo rustc:rustc
# loaded: rustc
# user: any
# prepare: yes
# limit_s: 900

zone() { cargo "$@" --quiet --manifest-path "$REPOSITORY/Cargo.toml" -p ebbtide-zone; }
if [ "$1" = prepare ]; then
    zone test --lib --no-run --target-dir "$SCRATCH/target" 2> errors || { tail -3 errors; exit 1; }
    zone clean --target-dir "$SCRATCH/target"
    exit 0
fi
cp -r "$SCRATCH/target" target
cargo test --quiet --offline --manifest-path "$REPOSITORY/Cargo.toml" -p ebbtide-zone --lib --target-dir "$PWD/target" -- --test-threads=1 > log 2> errors || { tail -3 errors; exit 1; }
sed -n 's/; finished in .*//p' log
