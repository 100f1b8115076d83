//! The page as a browser shows it: Chromium, without a window. Not every machine has
//! one, so these run only when asked for: `script/test page`.

use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::*;
use crate::report::sample_reports;

/// What is measured in the browser.
#[derive(Debug, Deserialize)]
struct Measured {
    dark: bool,
    window_width: f64,
    /// More than that of the window if one has to scroll sideways.
    page_width: f64,
    /// What was asked for from elsewhere.
    requests: Vec<String>,
    chart_sizes: Vec<(f64, f64)>,
    /// In pixels.
    least_chart_text: f64,
    least_contrast: f64,
    /// The text that has it.
    least_contrast_of: String,
    texts: usize,
    tables: usize,
}

/// Measures a page with everything opened, and tells the page around it.
const MEASURE: &str = r#"
<script>
for (const details of document.querySelectorAll("details")) details.open = true;

// Contrast as WCAG 2 defines it.
const luminance = (colour) => {
    const [r, g, b] = colour.map((channel) => {
        const c = channel / 255;
        return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (y + 0.05) / (x + 0.05);
};
// [red, green, blue], or null for what can be seen through.
const parse = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    return numbers.length === 4 && numbers[3] === 0 ? null : numbers.slice(0, 3);
};
const background = (element) => {
    if (element.tagName === "svg") return parse(getComputedStyle(element.querySelector("rect")).fill);
    const own = parse(getComputedStyle(element).backgroundColor);
    return own ?? (element.parentElement ? background(element.parentElement) : [255, 255, 255]);
};
const hasText = (element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
const texts = [...document.body.querySelectorAll("*")]
    .filter((element) => !["SCRIPT", "style"].includes(element.tagName) && hasText(element))
    .map((element) => {
        const style = getComputedStyle(element);
        const colour = parse(element.closest("svg") ? style.fill : style.color);
        return { text: element.textContent.trim(), contrast: contrast(colour, background(element)) };
    })
    .sort((a, b) => a.contrast - b.contrast);

const charts = [...document.querySelectorAll("svg.chart")];
const heights = [...document.querySelectorAll("svg.chart text")]
    .map((text) => text.getBoundingClientRect().height);
const measured = {
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    window_width: innerWidth,
    page_width: document.documentElement.scrollWidth,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name),
    chart_sizes: charts.map((svg) => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height]),
    least_chart_text: Math.min(...heights),
    least_contrast: texts[0].contrast,
    least_contrast_of: texts[0].text,
    texts: texts.length,
    tables: document.querySelectorAll("table").length,
};
parent.document.getElementById("measured").textContent = JSON.stringify(measured).replace(/[&<>]/g, "?");
</script>
"#;

/// Opens the page of all samples in a window of this width.
fn measure(width: u32, dark: bool) -> Measured {
    let reports = sample_reports::all().into_iter();
    let records = reports.map(|report| (report.benchmark.clone(), report));
    let page = render(&records.collect()).unwrap();
    let page = page.replace("</body>", &format!("{MEASURE}</body>"));
    // Chromium's own windows cannot be as narrow as a phone.
    let window = html! {
        meta name="color-scheme" content="light dark";
        pre #measured {}
        iframe srcdoc=(page) width=(width) height="900" style="border: 0" {}
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("window.html");
    fs::write(&path, window.into_string()).unwrap();

    // Without what it does by itself on a network.
    let output = Command::new("timeout")
        .args([
            "120",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args([
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args(["--disable-component-update", "--disable-sync"])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .args(["--window-size=1400,1000", "--hide-scrollbars"])
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!dark)
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", path.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    let measured = dom
        .split_once("<pre id=\"measured\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .unwrap_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            panic!("Chromium, which script/bootstrap installs, has not shown the page: {errors}")
        });
    serde_json::from_str(measured.0).unwrap_or_else(|error| panic!("{error}: {}", measured.0))
}

fn check(width: u32, dark: bool) {
    let measured = measure(width, dark);
    let Measured {
        window_width,
        page_width,
        chart_sizes,
        least_contrast,
        least_contrast_of,
        ..
    } = &measured;
    assert_eq!(measured.dark, dark);
    assert_eq!(*window_width, f64::from(width));
    assert!(page_width <= window_width, "{page_width} of {window_width}");
    assert_eq!(measured.requests, [""; 0]);
    assert_eq!(chart_sizes.len(), 10);
    for (width, height) in chart_sizes {
        assert!(*width >= 300.0 && *height >= 200.0, "{chart_sizes:?}");
    }
    // A browser draws texts of whole pixels, and scales them.
    assert!(measured.least_chart_text.round() >= 11.0, "{measured:?}");
    assert!(
        *least_contrast >= 4.5,
        "{least_contrast}: {least_contrast_of}"
    );
    // All has been looked at.
    assert!(
        measured.texts > 200 && measured.tables >= 10,
        "{measured:?}"
    );
}

#[test]
#[ignore = "needs Chromium"]
fn on_a_phone() {
    check(390, false);
}

#[test]
#[ignore = "needs Chromium"]
fn on_a_dark_phone() {
    check(390, true);
}

#[test]
#[ignore = "needs Chromium"]
fn on_a_desk() {
    check(1280, false);
}

#[test]
#[ignore = "needs Chromium"]
fn on_a_dark_desk() {
    check(1280, true);
}
