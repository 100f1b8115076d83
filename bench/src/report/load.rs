//! Results of the benchmarks `commit` and `notify`.

use std::io::Write;

use serde::Serialize;

use super::export::settings;
use super::table::{align_right, caption, empty_table, heading, rate};
use super::{Report, Results, is_noisy, warn_of_noise};
use crate::latency::Latencies;
use crate::load::{Delivery, Form, Kind, Load, Plan, Point, Ratio, Series, Workload};

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

const QUANTILES: [(&str, f64); 2] = [("p50", 0.50), ("p99", 0.99)];

type LoadReport = Report<Plan, Point>;

impl Results for LoadReport {
    /// A row for each number of clients, and another table for the latencies.
    fn table(&self, width: Option<u16>) -> String {
        let mut lines = caption(self);
        lines.extend(method(self));
        format!(
            "{}\n\n{}\n\n{}\n",
            lines.join("\n"),
            throughput(self, width),
            latencies(self, width)
        )
    }

    fn write_tsv(&self, out: impl Write) -> csv::Result<()> {
        let mut writer = csv::WriterBuilder::new().delimiter(b'\t').from_writer(out);
        writer.write_record(tsv_header(self))?;
        for point in &self.results {
            let mut row = vec![point.clients.to_string()];
            for series in &point.series {
                row.extend(tsv_fields(series));
            }
            writer.write_record(row)?;
        }
        writer.flush()?;
        Ok(())
    }

    fn write_csv(&self, out: impl Write) -> csv::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        for line in csv_lines(self) {
            writer.serialize(line)?;
        }
        writer.flush()?;
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        let clients_name = self.parameters.workload.clients_name();
        let mut noisy = Vec::new();
        let mut behind = Vec::new();
        for point in &self.results {
            for series in &point.series {
                let figures = [
                    (Kind::Plain, series.plain_tps),
                    (Kind::Notify, Some(series.notify_tps)),
                ];
                for (kind, tps) in figures {
                    if let Some(tps) = tps.filter(|&tps| is_noisy(tps)) {
                        noisy.push(format!(
                            "{} with {} {clients_name} ({kind}), {:.0} to {:.0} transactions \
                             per second",
                            series.target, point.clients, tps.min, tps.max
                        ));
                    }
                }
                let runs = series.runs.iter();
                let backlog = runs
                    .map(|run| run.delivery.backlog_seconds)
                    .fold(0.0, f64::max);
                if backlog > BACKLOG * self.parameters.duration.as_secs_f64() {
                    behind.push(format!(
                        "{} with {} {clients_name}, {backlog:.1} s",
                        series.target, point.clients
                    ));
                }
            }
        }
        let mut warnings: Vec<String> = warn_of_noise(&noisy).into_iter().collect();
        if !behind.is_empty() {
            warnings.push(format!(
                "a listener could not keep up, and was still reading after the load ({}): \
                 the latencies are those of a growing backlog",
                behind.join("; ")
            ));
        }
        warnings
    }
}

fn form_name(form: Form) -> &'static str {
    match form {
        Form::Statement => "statement",
        Form::Function => "function",
        Form::Trigger => "trigger",
    }
}

/// What the figures of the tables are.
fn method(report: &LoadReport) -> Vec<String> {
    let plan = &report.parameters;
    let seconds = plan.duration.as_secs();
    let runs = match plan.runs.get() {
        1 => format!("one run of {seconds} s"),
        runs => format!("median (min-max) of {runs} runs of {seconds} s"),
    };
    let mut lines = vec![format!("tps: transactions per second, {runs}")];
    if let Workload::Commit { form } = plan.workload {
        lines.push(format!(
            "plain: the same transaction without its notification (by {})",
            form_name(form)
        ));
    }
    if let [base, _, ..] = &report.targets[..] {
        lines.push(format!("ratio: of notify_tps, to {}", base.name));
    }
    lines.push(
        "commit, due: latency of a notification, in microseconds, from its COMMIT's return, and \
         from when it was due"
            .to_owned(),
    );
    lines.push("probes: notifications whose latency from COMMIT was measured".to_owned());
    lines
}

fn throughput(report: &LoadReport, width: Option<u16>) -> String {
    let plan = &report.parameters;
    let runs = plan.runs.get();
    let has_plain = plan.workload.kinds().contains(&Kind::Plain);

    let mut table = empty_table(width);
    let mut header = vec![heading(plan.workload.clients_name())];
    for (position, target) in report.targets.iter().enumerate() {
        let mut names = Vec::new();
        if has_plain {
            names.push("plain_tps");
        }
        names.push("notify_tps");
        if has_plain {
            names.push("notify_to_plain");
        }
        if position > 0 {
            names.push("ratio");
        }
        let name = &target.name;
        header.extend(
            names
                .iter()
                .map(|figure| heading(&format!("{name}\n{figure}"))),
        );
    }
    table.set_header(header);

    for point in &report.results {
        let mut row = vec![point.clients.to_string()];
        for series in &point.series {
            row.extend(series.plain_tps.map(|tps| rate(tps, runs)));
            row.push(rate(series.notify_tps, runs));
            row.extend(series.notify_to_plain.map(|share| ratio(share, runs)));
            row.extend(series.ratio.map(|multiple| ratio(multiple, runs)));
        }
        table.add_row(row);
    }
    align_right(&mut table);
    table.trim_fmt()
}

fn ratio(ratio: Ratio, runs: u32) -> String {
    if runs > 1 {
        format!(
            "{:.2}\n({:.2}-{:.2})",
            ratio.of_medians, ratio.min, ratio.max
        )
    } else {
        format!("{:.2}", ratio.of_medians)
    }
}

fn latencies(report: &LoadReport, width: Option<u16>) -> String {
    let mut table = empty_table(width);
    let figures = ["p50", "p99", "max"];
    let mut header = vec![
        heading(report.parameters.workload.clients_name()),
        heading("target"),
        heading("probes"),
    ];
    // Short, so that the table fits on a terminal of 80 columns.
    for start in ["commit", "due"] {
        header.extend(figures.map(|figure| heading(&format!("{start}\n{figure}"))));
    }
    table.set_header(header);

    for point in &report.results {
        for series in &point.series {
            let mut row = vec![
                point.clients.to_string(),
                series.target.clone(),
                series.from_commit.count().to_string(),
            ];
            for latencies in [&series.from_commit, &series.from_due] {
                row.extend(latency_fields(latencies, "-"));
            }
            table.add_row(row);
        }
    }
    align_right(&mut table);
    table.trim_fmt()
}

/// Median, 99th percentile and maximum, or `none` for each.
fn latency_fields(latencies: &Latencies, none: &str) -> impl Iterator<Item = String> {
    let quantiles = QUANTILES.map(|(_, quantile)| latencies.at_quantile(quantile));
    quantiles
        .into_iter()
        .chain([latencies.max()])
        .map(|value| value.map_or(none.to_owned(), |value| value.to_string()))
}

fn tsv_header(report: &LoadReport) -> Vec<String> {
    let workload = report.parameters.workload;
    let mut header = vec![workload.clients_name().to_owned()];
    for (position, target) in report.targets.iter().enumerate() {
        let mut figures = Vec::new();
        for kind in workload.kinds() {
            figures.push(format!("{kind}_tps"));
        }
        if workload.kinds().contains(&Kind::Plain) {
            figures.push("notify_to_plain".to_owned());
        }
        if position > 0 {
            figures.push("ratio".to_owned());
        }
        for figure in figures {
            let name = format!("{}_{figure}", target.name);
            header.extend([name.clone(), format!("{name}_min"), format!("{name}_max")]);
        }
        for start in ["from_commit", "from_due"] {
            header.push(format!("{}_{start}_count", target.name));
            for (figure, _) in QUANTILES {
                header.push(format!("{}_{start}_{figure}_usec", target.name));
            }
            header.push(format!("{}_{start}_max_usec", target.name));
        }
    }
    header
}

fn tsv_fields(series: &Series) -> Vec<String> {
    let mut fields = Vec::new();
    for tps in [series.plain_tps, Some(series.notify_tps)]
        .into_iter()
        .flatten()
    {
        fields.extend([tps.median, tps.min, tps.max].map(|rate| format!("{rate:.1}")));
    }
    for ratio in [series.notify_to_plain, series.ratio].into_iter().flatten() {
        fields.extend([ratio.of_medians, ratio.min, ratio.max].map(|ratio| format!("{ratio:.3}")));
    }
    for latencies in [&series.from_commit, &series.from_due] {
        fields.push(latencies.count().to_string());
        fields.extend(latency_fields(latencies, ""));
    }
    fields
}

/// A line of the CSV: one load, with everything that is needed to read it
/// without the other lines, so that files can be put together.
#[derive(Serialize)]
struct CsvLine<'a> {
    benchmark: &'a str,
    form: Option<&'a str>,
    target: &'a str,
    clients: u32,
    run: usize,
    kind: String,
    transactions: u64,
    transactions_per_sec: f64,
    from_commit_count: Option<u64>,
    from_commit_p50_usec: Option<u64>,
    from_commit_p99_usec: Option<u64>,
    from_commit_max_usec: Option<u64>,
    from_due_count: Option<u64>,
    from_due_p50_usec: Option<u64>,
    from_due_p99_usec: Option<u64>,
    from_due_max_usec: Option<u64>,
    backlog_seconds: Option<f64>,
    date: &'a str,
    server_version: &'a str,
    preload: String,
    settings: String,
    cpu_model: &'a str,
    cpu_count: usize,
    os: &'a str,
    kernel: &'a str,
    command_line: String,
}

fn csv_lines(report: &LoadReport) -> Vec<CsvLine<'_>> {
    let form = match report.parameters.workload {
        Workload::Commit { form } => Some(form_name(form)),
        Workload::Notify => None,
    };
    let command_line = report.command_line.join(" ");
    let mut lines = Vec::new();
    for point in &report.results {
        for (series, target) in point.series.iter().zip(&report.targets) {
            for (position, run) in series.runs.iter().enumerate() {
                let mut add = |kind: Kind, load: Load, delivery: Option<&Delivery>| {
                    let quantile = |latencies: Option<&Latencies>, quantile| {
                        latencies.and_then(|latencies| latencies.at_quantile(quantile))
                    };

                    let from_commit = delivery.map(|delivery| &delivery.from_commit);
                    let from_due = delivery.map(|delivery| &delivery.from_due);
                    lines.push(CsvLine {
                        benchmark: report.benchmark,
                        form,
                        target: &series.target,
                        clients: point.clients,
                        run: position + 1,
                        kind: kind.to_string(),
                        transactions: load.transactions,
                        transactions_per_sec: load.transactions_per_sec,
                        from_commit_count: from_commit.map(Latencies::count),
                        from_commit_p50_usec: quantile(from_commit, 0.50),
                        from_commit_p99_usec: quantile(from_commit, 0.99),
                        from_commit_max_usec: from_commit.and_then(Latencies::max),
                        from_due_count: from_due.map(Latencies::count),
                        from_due_p50_usec: quantile(from_due, 0.50),
                        from_due_p99_usec: quantile(from_due, 0.99),
                        from_due_max_usec: from_due.and_then(Latencies::max),
                        backlog_seconds: delivery.map(|delivery| delivery.backlog_seconds),
                        date: &report.date,
                        server_version: &target.server_version,
                        preload: target.preload.join(" "),
                        settings: settings(target),
                        cpu_model: &report.machine.cpu_model,
                        cpu_count: report.machine.cpu_count,
                        os: &report.machine.os,
                        kernel: &report.machine.kernel,
                        command_line: command_line.clone(),
                    });
                };
                if let Some(plain) = run.plain {
                    add(Kind::Plain, plain, None);
                }
                add(Kind::Notify, run.notify, Some(&run.delivery));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::load::tests::run;
    use crate::load::{Protocol, Run};
    use crate::report::tests::{machine, targets};
    use crate::report::write_json;

    fn example(workload: Workload) -> LoadReport {
        let has_plain = workload.kinds().contains(&Kind::Plain);
        let runs = |loads: [(f64, f64); 2], latencies: [&[u64]; 2]| -> Vec<Run> {
            let runs = loads.into_iter().zip(latencies);
            runs.map(|((plain, notify), latencies)| {
                run(has_plain.then_some(plain), notify, latencies)
            })
            .collect()
        };
        let point = |clients, stock, pinpoint| {
            Point::new(
                clients,
                vec![
                    ("stock".to_owned(), stock),
                    ("pinpoint".to_owned(), pinpoint),
                ],
            )
        };
        LoadReport {
            benchmark: match workload {
                Workload::Commit { .. } => "commit",
                Workload::Notify => "notify",
            },
            version: "0.1.0",
            command_line: vec!["pinpoint-bench".to_owned()],
            date: "2026-01-02T03:04:05Z".to_owned(),
            machine: machine(),
            parameters: Plan {
                workload,
                clients: vec![1, 64],
                listeners: 1,
                duration: Duration::from_secs(2),
                warmup: Duration::from_secs(1),
                runs: NonZeroU32::new(2).unwrap(),
                protocol: Protocol::Simple,
                commit_delay: None,
                probes_per_sec: 50,
                timeout: Duration::from_secs(60),
            },
            targets: targets(),
            results: vec![
                point(
                    1,
                    runs([(1000.0, 900.0), (1100.0, 950.0)], [&[90, 110], &[100]]),
                    runs([(1010.0, 990.0), (1090.0, 1070.0)], [&[80, 81], &[82]]),
                ),
                point(
                    64,
                    // No probe was committed while the load went on.
                    runs([(8000.0, 2000.0), (8200.0, 2100.0)], [&[], &[]]),
                    runs([(8100.0, 8000.0), (8300.0, 5100.0)], [&[200], &[3000]]),
                ),
            ],
        }
    }

    const COMMIT: Workload = Workload::Commit {
        form: Form::Statement,
    };

    fn written<E: std::fmt::Debug>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table_of_commit() {
        insta::assert_snapshot!(example(COMMIT).table(None));
    }

    #[test]
    fn table_of_notify() {
        insta::assert_snapshot!(example(Workload::Notify).table(None));
    }

    #[test]
    fn table_of_one_target_and_one_run() {
        let mut report = example(Workload::Commit {
            form: Form::Trigger,
        });
        report.parameters.runs = NonZeroU32::MIN;
        report.targets.truncate(1);
        for point in &mut report.results {
            point.series.truncate(1);
        }
        insta::assert_snapshot!(report.table(Some(80)));
    }

    #[test]
    fn tsv_of_commit() {
        insta::assert_snapshot!(written(|out| example(COMMIT).write_tsv(out)));
    }

    #[test]
    fn tsv_of_notify() {
        insta::assert_snapshot!(written(|out| example(Workload::Notify).write_tsv(out)));
    }

    #[test]
    fn csv_of_commit() {
        insta::assert_snapshot!(written(|out| example(COMMIT).write_csv(out)));
    }

    #[test]
    fn json_of_commit() {
        let mut report = example(COMMIT);
        report.results.remove(0);
        insta::assert_snapshot!(written(|out| write_json(&report, out)));
    }

    #[test]
    fn noise_and_a_backlog_get_a_warning() {
        assert_eq!(
            example(Workload::Notify).warnings(),
            [
                "some runs differ a lot (pinpoint with 64 senders (notify), 5100 to 8000 \
                 transactions per second): stop other programs, or raise --duration and --runs",
                "a listener could not keep up, and was still reading after the load (stock with \
                 1 senders, 0.1 s; pinpoint with 1 senders, 0.1 s; stock with 64 senders, 0.1 s; \
                 pinpoint with 64 senders, 0.1 s): the latencies are those of a growing backlog",
            ]
        );
    }

    #[test]
    fn without_noise_and_backlog_there_is_none() {
        let mut report = example(COMMIT);
        report.results.truncate(1);
        for series in &mut report.results[0].series {
            for run in &mut series.runs {
                run.delivery.backlog_seconds = 0.099;
            }
        }
        assert_eq!(report.warnings(), [""; 0]);
    }
}
