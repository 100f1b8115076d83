//! Finding one's way in a report. One that was interrupted, or edited, may lack
//! what it announces, so everything may be missing.

use super::results::{Figure, Point, Report, Series};

impl Report {
    /// In the order in which they were measured.
    pub fn workloads(&self) -> Vec<&str> {
        let mut workloads: Vec<&str> = Vec::new();
        for point in &self.points {
            if !workloads.contains(&point.workload.as_str()) {
                workloads.push(&point.workload);
            }
        }
        workloads
    }

    pub fn points_of<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a Point> {
        self.points
            .iter()
            .filter(move |point| point.workload == workload)
    }

    /// The names of those that are compared with the first one.
    pub fn compared(&self) -> impl Iterator<Item = &str> {
        self.targets
            .iter()
            .skip(1)
            .map(|target| target.name.as_str())
    }

    pub fn baseline(&self) -> Option<&str> {
        self.targets.first().map(|target| target.name.as_str())
    }

    /// Was the figure measured with this workload?
    pub fn has(&self, figure: &Figure, workload: &str) -> bool {
        self.points_of(workload)
            .flat_map(|point| &point.series)
            .any(|series| series.summary.contains_key(&figure.name))
    }
}

impl Point {
    pub fn of_target(&self, target: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.target == target)
    }
}
