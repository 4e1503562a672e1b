# what: cargo and rustc build a crate of this project and its tests
# needs: cargo:cargo rustc:rustc
# loaded: rustc
# user: any
# limit_s: 600

cargo test --quiet --offline --manifest-path "$REPOSITORY/Cargo.toml" -p ebbtide-zone --lib --target-dir "$PWD/target" -- --test-threads=1 > log 2> errors || {
    tail -3 errors
    exit 1
}
sed -n 's/; finished in .*//p' log
