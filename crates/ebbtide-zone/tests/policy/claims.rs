//! Which frames a claim takes.

use crate::storage::*;
use ebbtide_zone::*;

#[test]
fn claims_start_at_the_high_end_and_prefer_whole_blocks() {
    let mut s = Storage::new(200, 200);
    let mut z = s.zone();
    let e = z.take_blocks(200, 1, 0).unwrap();
    z.put_blocks(e.first, 200, 200).unwrap();
    let small = take(&mut z, 10);
    assert_eq!(small.first.0, BASE);
    // 200 blocks: words of 64, 64, 64 and 8.
    let blocks = |first, count| {
        Some(Claim::Blocks {
            first: Block(FIRST + first),
            count,
        })
    };
    assert_eq!(z.claim_dirty(5 * 512 + 100, false), blocks(195, 5));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(192, 3));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(128, 64));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(64, 64));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(1, 63));
    let last = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!((last.block(), last.frames()), (Block(FIRST), 502));
    assert_eq!(z.claim_dirty(u32::MAX, true), None);
    z.check_invariants().unwrap();
    let c = z.counters();
    assert_eq!((c.free, c.in_use, c.claimed), (0, 10, 200 * 512 - 10));
}

#[test]
fn lazy_is_claimed_only_when_asked_for() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let e = z.take_blocks(1, 1, 0).unwrap();
    z.put_blocks(e.first, 1, 1).unwrap();
    let claim = z.claim_dirty(512, false).unwrap();
    z.put_claim(claim, Outcome::Lazy).unwrap();
    assert_eq!(z.claim_dirty(512, false), None);
    // A small budget takes frames out of the whole-free block, the highest.
    let part = z.claim_dirty(70, true).unwrap();
    assert_eq!(part.frames(), 70);
    assert!(
        matches!(part, Claim::Frames { mask, .. } if mask[7] == u64::MAX && mask[6] == 0x3f << 58)
    );
    z.put_claim(part, Outcome::Clean).unwrap();
    z.check_invariants().unwrap();
    assert_eq!(z.counters().lazy, 512 - 70);
    // Taken lazy frames are not clean.
    assert!(!take(&mut z, 64).clean);
}

#[test]
fn lazy_alone_leaves_what_is_dirty() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let e = z.take_blocks(3, 1, 0).unwrap();
    z.put_blocks(e.first, 3, 3).unwrap();
    // Of three dirty blocks the highest becomes lazy, and a part of the next.
    let whole = z.claim_dirty(512, false).unwrap();
    z.put_claim(whole, Outcome::Lazy).unwrap();
    let part = z.claim_dirty(100, false).unwrap();
    z.put_claim(part, Outcome::Lazy).unwrap();
    let first = z.claim_lazy(u32::MAX).unwrap();
    assert_eq!(first, whole);
    assert_eq!(z.claim_lazy(u32::MAX), Some(part));
    assert_eq!(z.claim_lazy(u32::MAX), None);
    assert_eq!(z.counters().dirty, 1024 - 100);
    z.check_invariants().unwrap();
}
