//! Lock domains: how many zones there are, and which zone is home to a CPU.
//!
//! ```text
//!  node 0   CPUs 0 1 2 3 4 5 6 7    zones 0 1      each zone is home to neighbouring CPUs of one node
//!  node 1   CPUs 8 … 15             zones 2 3
//! ```
//!
//! By default a zone for each four CPUs that the process may use, at least one for each node of theirs. With fewer
//! zones than nodes, neighbouring nodes share one. With more zones than CPUs the rest stay unopened, until a home
//! has no address space left.
//!
//! Read once, at the start, from `/sys/devices/system/node` without allocating; what cannot be read (a sandbox, a
//! kernel without NUMA) is one node.

use crate::base::config::MAX_ZONES;
use ebbtide_sys::process::CpuSet;

/// CPUs with a home of their own choosing; higher ones wrap round.
const CPUS: usize = 1024;
/// Nodes that are told apart; the rest belong to the last.
const NODES: usize = 64;
/// CPUs that share a zone by default.
const CPUS_PER_ZONE: usize = 4;
/// Zones by default, at most, unless there are more nodes.
const MOST_ZONES: usize = 16;

/// The home zone of each CPU, and the zones of each node.
#[derive(Clone, Copy)]
pub struct Domains {
    /// Number of zones.
    zones: u8,
    homes: [u8; CPUS],
    /// The first zone of the same node, by zone.
    first: [u8; MAX_ZONES],
}

impl Domains {
    /// One zone for all.
    pub const ONE: Self = Self {
        zones: 1,
        homes: [0; CPUS],
        first: [0; MAX_ZONES],
    };

    /// By what the machine says. One zone, when only one is wanted, asks it nothing.
    pub fn of_machine(wanted: usize, most: usize) -> Self {
        if wanted == 1 || most <= 1 {
            return Self::ONE;
        }
        let nodes = CpuSet::nodes();
        let several = !nodes.has_at_most_one();
        Self::new(wanted, most, &CpuSet::allowed(), |node| {
            let is_there = several && nodes.has(node);
            is_there.then(|| CpuSet::of_node(node)).flatten()
        })
    }

    /// As configured (`dev=zones:N`, 0: by the machine), `most` zones at most. `of_node` says which CPUs a node has;
    /// `None`: there is no such node.
    pub fn new(
        wanted: usize,
        most: usize,
        allowed: &CpuSet,
        of_node: impl Fn(usize) -> Option<CpuSet>,
    ) -> Self {
        let mut node_of = [0u8; CPUS];
        let mut counts = [0usize; NODES];
        for node in 0..NODES {
            if let Some(cpus) = of_node(node) {
                let here = (0..CPUS).filter(|&cpu| cpus.has(cpu));
                here.for_each(|cpu| node_of[cpu] = node as u8);
            }
        }
        let may_run = |cpu: &usize| allowed.has(*cpu);
        (0..CPUS)
            .filter(may_run)
            .for_each(|cpu| counts[usize::from(node_of[cpu])] += 1);
        let nodes = counts.iter().filter(|&&count| count > 0).count().max(1);
        let all: usize = counts.iter().sum();
        let zones = match wanted {
            0 => (all / CPUS_PER_ZONE).clamp(1, MOST_ZONES).max(nodes),
            zones => zones,
        };
        let zones = zones.min(most).clamp(1, MAX_ZONES);
        let mut domains = Self {
            zones: zones as u8,
            ..Self::ONE
        };
        // Nodes of the process, in order; each has an equal share of the zones.
        let used = (0..NODES).filter(|&node| counts[node] > 0);
        for (order, node) in used.enumerate() {
            let start = order * zones / nodes;
            let range = start..((order + 1) * zones / nodes).max(start + 1);
            domains.first[range.clone()].fill(start as u8);
            let own = |cpu: &usize| usize::from(node_of[*cpu]) == node;
            let here = (0..CPUS).filter(own).filter(may_run);
            for (at, cpu) in here.enumerate() {
                let zone = start + at * range.len() / counts[node];
                domains.homes[cpu] = zone as u8;
            }
        }
        // CPUs that the process may be given later are at home where their neighbours are.
        for cpu in (1..CPUS).filter(|&cpu| !allowed.has(cpu)) {
            domains.homes[cpu] = domains.homes[cpu - 1];
        }
        domains
    }

    /// Number of zones.
    pub fn zones(&self) -> usize {
        usize::from(self.zones)
    }

    /// The home of a CPU.
    pub fn home(&self, cpu: usize) -> usize {
        usize::from(self.homes[cpu % CPUS])
    }

    /// All other zones, those of the same node first.
    pub fn siblings(&self, home: usize) -> impl Iterator<Item = usize> {
        let zones = self.zones();
        let around = (1..zones).map(move |turn| (home + turn) % zones);
        let is_near = move |zone: &usize| self.first[*zone] == self.first[home];
        let near = around.clone().filter(is_near);
        near.chain(around.filter(move |zone| !is_near(zone)))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn set(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        cpus.into_iter().for_each(|cpu| set.add(cpu));
        set
    }

    /// Nodes of `each` neighbouring CPUs.
    fn domains(wanted: usize, cpus: usize, each: usize) -> Domains {
        Domains::new(wanted, 64, &set(0..cpus), |node| {
            let first = node * each;
            (first < cpus).then(|| set(first..(first + each).min(cpus)))
        })
    }

    #[test]
    fn zones_by_cpus_and_nodes() {
        let by_default = |cpus, each| domains(0, cpus, each).zones();
        assert_eq!(by_default(1, 1), 1);
        assert_eq!((by_default(2, 2), by_default(7, 7)), (1, 1));
        assert_eq!((by_default(16, 16), by_default(256, 256)), (4, 16));
        assert_eq!((by_default(2, 1), by_default(256, 8)), (2, 32));
        assert_eq!(domains(64, 2, 2).zones(), 64);
        let under_a_limit = Domains::new(8, 3, &set(0..8), |_| None);
        assert_eq!(under_a_limit.zones(), 3);
        assert_eq!(Domains::new(0, 8, &set([]), |_| None).zones(), 1);
    }

    #[test]
    fn a_zone_is_home_to_cpus_of_one_node() {
        for (wanted, cpus, each) in [(0, 16, 8), (4, 16, 8), (6, 16, 4), (3, 8, 4), (12, 2, 2)] {
            let d = domains(wanted, cpus, each);
            let home_nodes = |zone| {
                let here = (0..cpus).filter(|&cpu| d.home(cpu) == zone);
                let mut nodes: Vec<usize> = here.map(|cpu| cpu / each).collect();
                nodes.dedup();
                nodes
            };
            assert!((0..d.zones()).all(|zone| home_nodes(zone).len() <= 1));
            assert!((0..cpus).all(|cpu| d.home(cpu) < d.zones()));
        }
        // Fewer zones than nodes: neighbours share.
        let d = domains(2, 16, 4);
        assert_eq!([0, 4, 8, 12].map(|cpu| d.home(cpu)), [0, 0, 1, 1]);
        // Each zone is used where there are CPUs enough.
        let d = domains(4, 16, 8);
        assert_eq!(
            [0, 3, 4, 7, 8, 12, 15].map(|c| d.home(c)),
            [0, 0, 1, 1, 2, 3, 3]
        );
    }

    #[test]
    fn siblings_are_all_others_near_ones_first() {
        let d = domains(6, 16, 8);
        let of = |home| d.siblings(home).collect::<Vec<_>>();
        assert_eq!(of(1), [2, 0, 3, 4, 5]);
        assert_eq!(of(5), [3, 4, 0, 1, 2]);
        assert_eq!(Domains::ONE.siblings(0).count(), 0);
    }

    #[test]
    fn cpus_that_are_given_later_have_a_home() {
        let d = Domains::new(2, 64, &set([4, 5, 6, 7]), |_| None);
        assert_eq!([4, 7, 900].map(|cpu| d.home(cpu)), [0, 1, 1]);
        assert!(d.home(5000) < 2);
    }
}
