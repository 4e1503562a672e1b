# z3 solves equations of 24 bits; $1 scales.
set -eu
echo "@watch $$"
exec z3 -in <<END
(set-option :smt.random_seed 1)
$(n=0
while [ $n -lt $((8 * $1)) ]; do
    echo "(push)(declare-const a (_ BitVec 24))(declare-const b (_ BitVec 24))"
    echo "(assert (= (bvmul a b) (_ bv$((3991680 + n)) 24)))"
    echo "(assert (bvult (_ bv1 24) a))(assert (bvult a b))(assert (bvult b (_ bv4096 24)))"
    echo "(check-sat)(pop)"
    n=$((n + 1))
done)
(echo "done $1")
END
