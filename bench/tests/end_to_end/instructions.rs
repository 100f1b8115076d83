//! The benchmark `instructions`: what it counts. It needs valgrind.

use std::process::Command;

use crate::harness::{Bench, number};

#[test]
fn instructions_are_counted_where_they_belong() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no valgrind here");
        return;
    }
    let bench = Bench::new();
    let report =
        bench.report("instructions --operation=select,changed_since,wait --count=5 --runs=1");
    let points = report["points"].as_array().unwrap();
    let [select, changed_since, wait] = &points[..] else {
        panic!("{report}");
    };
    let run = |target: usize| &select["series"][target]["runs"][0];
    let (stock, pinpoint) = (run(0), run(1));
    assert!(number(stock, "instructions") > 1000.0, "{stock}");
    assert_eq!(number(stock, "library_instructions"), 0.0);
    let in_library = number(pinpoint, "library_instructions");
    assert!(in_library > 0.0, "{pinpoint}");
    assert!(in_library < number(pinpoint, "instructions"), "{pinpoint}");
    // A message is received, and one is sent.
    assert!(number(stock, "system_calls") >= 2.0, "{stock}");

    for asked in [changed_since, wait] {
        let series = &asked["series"];
        assert!(series[0]["runs"][0].as_object().unwrap().is_empty());
        assert!(number(&series[1]["runs"][0], "library_instructions") > 0.0);
    }
}
