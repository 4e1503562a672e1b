# what: the tests of Rust's library alloc, with Ebbtide as global allocator
# source: rust nightly
# limit_s: 600
#
# They use features that only a nightly compiler has. A line runs all tests of a module at the same time.

cp -r "$SRC/alloc" "$SRC/alloctests" .
cd alloctests
# Benchmarks are no tests.
sed -i '/^\[\[bench\]\]/,/^$/d' Cargo.toml
cat >> Cargo.toml <<END

[dependencies]
ebbtide = { path = "$REPOSITORY/crates/ebbtide", optional = true }

[workspace]

[profile.dev]
opt-level = 1
debug = 0
END
for file in lib.rs tests/lib.rs tests/vec_deque_alloc_error.rs; do
    printf '\n#[cfg(feature = "ebbtide")]\n#[global_allocator]\nstatic ALLOCATOR: ebbtide::Ebbtide = ebbtide::Ebbtide;\n' >> "$file"
done
# build DIRECTORY OPTION…
build() {
    mkdir "../$1"
    for target in --lib '--test alloctests' '--test vec_deque_alloc_error'; do
        cargo +nightly test $target --no-run --message-format=json "${@:2}" > messages
        cp "$(grep -oP '"executable":"\K[^"]+' messages)" "../$1/${target##*[- ]}"
    done
}
build ebbtide --features ebbtide
build glibc
cd ..
for program in lib alloctests vec_deque_alloc_error; do
    # Without the tests that are marked as ignored.
    comm -23 <("ebbtide/$program" --list --format terse | sort) <("ebbtide/$program" --list --format terse --ignored | sort) |
        sed -n 's/: test$//p' |
        awk -v program="$program" '{
            module = $0
            sub(/(^|::)[^:]*$/, "", module)
            sub(/::tests$/, "", module)
            if (module == "") module = "test"
            tests[module] = tests[module] " " $0
            count[module]++
        } END {
            for (module in tests) printf "linked %s %s, %d tests: {allocator}/%s --exact%s\n", program, module, count[module], program, tests[module]
        }' | sort
done
