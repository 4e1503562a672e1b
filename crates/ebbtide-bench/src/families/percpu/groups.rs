//! The measured process: groups of per-CPU areas, created like control groups by the script of the kernel's "percpu:
//! partial chunk depopulation".
//!
//! Parent groups and their ten children each are created one after the other. A group has the areas of a control
//! group: a few reference counts, small statistics, two tables. Then ten of eleven groups are removed: all children
//! in order, or any ten of eleven in random order. A second later, short-lived small areas are allocated in the same
//! chunks. At last all groups are removed and the small areas stay. The figure is the memory that they pin.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::families::percpu::percpu_api::{Area, PerCpu};
use crate::measured::calls::status_bytes;
use crate::measured::{MIB, Output};

/// One of this many groups stays.
const FAMILY: usize = 11;
const PAGE_BYTES: usize = 4096;
const CALM: Duration = Duration::from_secs(1);
/// Sizes of a group's areas, from and to.
const SIZES: [(usize, usize); 6] = [
    (8, 8),
    (8, 8),
    (16, 128),
    (96, 256),
    (640, 1536),
    (2048, 4608),
];
/// Number of short-lived areas for each family of groups.
const TOP_UP: usize = 10;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn within(&mut self, (least, most): (usize, usize)) -> usize {
        least + self.next() as usize % (most - least + 1)
    }
}

/// One area of a group. Its content is computed from its seed.
struct Member {
    area: Area,
    size_bytes: usize,
    seed: u8,
}

impl Member {
    fn new(percpu: &PerCpu, size_bytes: usize, seed: u8) -> Result<Self> {
        let area = percpu.alloc(size_bytes, 8)?;
        for cpu in 0..percpu.cpus {
            // SAFETY: just allocated, and no other code uses it.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(percpu.copy(area, cpu), size_bytes) };
            ensure!(bytes.iter().all(|&b| b == 0), "an area is not zero");
            bytes.fill(seed ^ cpu as u8);
        }
        Ok(Member {
            area,
            size_bytes,
            seed,
        })
    }

    fn check(&self, percpu: &PerCpu) -> Result<()> {
        for cpu in 0..percpu.cpus {
            // SAFETY: allocated, and no other code uses it.
            let bytes =
                unsafe { std::slice::from_raw_parts(percpu.copy(self.area, cpu), self.size_bytes) };
            let value = self.seed ^ cpu as u8;
            ensure!(bytes.iter().all(|&b| b == value), "a survivor has changed");
        }
        Ok(())
    }

    fn free(self, percpu: &PerCpu) {
        // SAFETY: allocated, and dropped here.
        unsafe { (percpu.free)(self.area) };
    }
}

/// Bytes on all CPUs in pages that hold a part of an area.
fn live_bytes<'a>(percpu: &PerCpu, members: impl Iterator<Item = &'a Member>) -> usize {
    let mut pages = HashSet::new();
    for member in members {
        // SAFETY: allocated.
        let start = unsafe { percpu.copy(member.area, 0) } as usize;
        pages.extend(start / PAGE_BYTES..=(start + member.size_bytes - 1) / PAGE_BYTES);
    }
    pages.len() * PAGE_BYTES * percpu.cpus
}

/// Runs the script with `count` groups, rounded up to whole families.
pub fn run(case: &str, count: u64) -> Result<Output> {
    let percpu = PerCpu::find()?;
    let families = (count as usize).div_ceil(FAMILY);
    let mut output = Output::default();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mib = |bytes: usize| bytes as f64 / MIB;
    let rss = || mib(status_bytes("VmRSS") as usize);
    let mut note = |name: &str, value: f64| {
        output.metrics.insert(name.into(), value);
    };
    note("before_mib", mib(percpu.stats().populated_bytes));
    let rss_before = rss();

    let start = Instant::now();
    let mut groups: Vec<Vec<Member>> = Vec::with_capacity(families * FAMILY);
    for _ in 0..families * FAMILY {
        let seed = random.next() as u8;
        let sizes = SIZES.map(|range| random.within(range));
        let members = sizes.map(|size| Member::new(&percpu, size, seed));
        groups.push(members.into_iter().collect::<Result<_>>()?);
    }
    note("create_ms", start.elapsed().as_secs_f64() * 1e3);
    let peak = percpu.stats().populated_bytes;
    note("peak_mib", mib(peak));
    note("rss_peak_mib", rss() - rss_before);

    let start = Instant::now();
    let survivors = remove(&percpu, case, groups, &mut random);
    note("remove_ms", start.elapsed().as_secs_f64() * 1e3);
    thread::sleep(CALM);
    let after = percpu.stats().populated_bytes;
    let live = live_bytes(&percpu, survivors.iter());
    note("after_mib", mib(after));
    note("after_live_mib", mib(live));
    note("rss_after_mib", rss() - rss_before);
    note("after_to_peak", after as f64 / peak as f64);
    note("after_to_live", after as f64 / live as f64);

    // Short-lived small areas are allocated, and half of them freed.
    let mut small = Vec::new();
    for step in 0..families * TOP_UP {
        let seed = random.next() as u8;
        small.push(Member::new(&percpu, random.within((8, 128)), seed)?);
        if step % 2 == 1 {
            let index = random.next() as usize % small.len();
            small.swap_remove(index).free(&percpu);
        }
    }
    thread::sleep(CALM);
    let topped = percpu.stats().populated_bytes;
    let live = live_bytes(&percpu, survivors.iter().chain(&small));
    note("topped_mib", mib(topped));
    note("topped_to_live", topped as f64 / live as f64);

    let mut checksum = 0u64;
    for member in survivors.iter().chain(&small) {
        member.check(&percpu)?;
        checksum = checksum
            .wrapping_mul(31)
            .wrapping_add(member.size_bytes as u64 + u64::from(member.seed));
    }
    for member in survivors {
        member.free(&percpu);
    }
    thread::sleep(CALM);
    let pinned = percpu.stats().populated_bytes;
    let live = live_bytes(&percpu, small.iter());
    note("pinned_mib", mib(pinned));
    note("pinned_to_live", pinned as f64 / live as f64);
    for member in &small {
        member.check(&percpu)?;
    }
    output.checksum = checksum;
    Ok(output)
}

/// Removes ten of eleven groups. Returns the areas of the others.
fn remove(
    percpu: &PerCpu,
    case: &str,
    groups: Vec<Vec<Member>>,
    random: &mut Random,
) -> Vec<Member> {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    let mut groups: Vec<Option<Vec<Member>>> = groups.into_iter().map(Some).collect();
    if case == "groups_any" {
        for last in (1..order.len()).rev() {
            order.swap(last, random.next() as usize % (last + 1));
        }
        order.truncate(groups.len() / FAMILY * (FAMILY - 1));
    } else {
        order.retain(|index| index % FAMILY != 0);
    }
    for index in order {
        for member in groups[index].take().into_iter().flatten() {
            member.free(percpu);
        }
    }
    groups.into_iter().flatten().flatten().collect()
}
