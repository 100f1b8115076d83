//! The modules of each crate form no circle, and the folders have the order that
//! lib.rs draws.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Which modules each module uses, by their names from the root of the crate.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// All files of a crate: module, and text without its tests.
fn modules(src: &Path) -> Vec<(String, String)> {
    fn walk(folder: &Path, prefix: &str, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let is_test = stem == "tests" || stem.ends_with("_tests") || stem == "sample_reports";
            let name = match stem {
                "lib" | "main" => continue,
                _ if is_test => continue,
                _ if prefix.is_empty() => stem.to_owned(),
                _ => format!("{prefix}::{stem}"),
            };
            if path.is_dir() {
                walk(&path, &name, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                found.push((name, code.to_owned()));
            }
        }
    }
    let mut found = Vec::new();
    walk(src, "", &mut found);
    found
}

/// The paths that a text names, from the root of the crate: `use` declarations, one
/// level of braces included, and others.
fn paths(module: &str, text: &str) -> Vec<String> {
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let mut paths = Vec::new();
    for (start, base) in [
        ("crate::", String::new()),
        ("super::", format!("{parent}::")),
        ("self::", format!("{module}::")),
    ] {
        for (at, _) in text.match_indices(start) {
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':' || c == '_') {
                continue;
            }
            let rest = &text[at + start.len()..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            let (path, rest) = rest.split_at(end.unwrap_or(rest.len()));
            match rest.strip_prefix('{').and_then(|list| list.split_once('}')) {
                Some((list, _)) => {
                    for item in list.split(',') {
                        paths.push(format!("{base}{path}{}", item.trim()));
                    }
                }
                None => paths.push(format!("{base}{path}")),
            }
        }
    }
    paths
}

/// Between the files of a crate.
fn graph(src: &Path) -> Graph {
    let modules = modules(src);
    let known: BTreeSet<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    let mut graph = Graph::new();
    for (name, text) in &modules {
        let uses = graph.entry(name.clone()).or_default();
        for path in paths(name, text) {
            // The longest part of the path that is a module.
            let mut path = path.trim_start_matches("::");
            while !known.contains(path) {
                match path.rsplit_once("::") {
                    Some((shorter, _)) => path = shorter,
                    None => break,
                }
            }
            // A folder's own file only lists what is in it, and what is in it may use that.
            let is_family =
                name.starts_with(&format!("{path}::")) || path.starts_with(&format!("{name}::"));
            if known.contains(path) && path != name && !is_family {
                uses.insert(path.to_owned());
            }
        }
    }
    graph
}

/// The same between the folders and files right below the root.
fn folders(graph: &Graph) -> Graph {
    let folder = |name: &str| name.split("::").next().unwrap().to_owned();
    let mut folders = Graph::new();
    for (name, uses) in graph {
        let of = folders.entry(folder(name)).or_default();
        let others = uses.iter().map(|used| folder(used));
        of.extend(others.filter(|other| *other != folder(name)));
    }
    folders
}

/// Modules that use each other, one way or another.
fn circle(graph: &Graph) -> Option<Vec<String>> {
    fn visit<'a>(
        graph: &'a Graph,
        name: &'a str,
        way: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> bool {
        if way.contains(&name) {
            way.push(name);
            return true;
        }
        if done.contains(name) {
            return false;
        }
        way.push(name);
        for used in graph.get(name).into_iter().flatten() {
            if visit(graph, used, way, done) {
                return true;
            }
        }
        way.pop();
        done.insert(name);
        false
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|name| {
        let mut way = Vec::new();
        let is_circle = visit(graph, name, &mut way, &mut done);
        is_circle.then(|| way.into_iter().map(str::to_owned).collect())
    })
}

const CRATES: [&str; 3] = ["src", "servers/src", "torture/src"];

fn src(folder: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

#[test]
fn no_module_uses_itself_by_way_of_others() {
    for folder in CRATES {
        let graph = graph(&src(folder));
        assert!(
            graph.values().map(BTreeSet::len).sum::<usize>() > 10,
            "{folder}: {graph:?}"
        );
        assert_eq!(circle(&graph), None, "{folder}");
        assert_eq!(circle(&folders(&graph)), None, "{folder}");
    }
}

#[test]
fn folders_use_only_those_below() {
    let layers = [
        "cli",
        "benchmarks",
        "runner",
        "workload",
        "clients",
        "report",
    ];
    let below = |layer: &str| layers.iter().position(|known| *known == layer).unwrap();
    for (folder, uses) in folders(&graph(&src("src"))) {
        for used in uses {
            assert!(below(&folder) < below(&used), "{folder} uses {used}");
        }
    }
}

#[test]
fn a_circle_would_be_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph
                .entry(from.to_string())
                .or_default()
                .insert(to.to_string());
        }
        graph
    };
    assert_eq!(circle(&graph(&[("a", "b"), ("a", "c"), ("b", "c")])), None);
    assert!(circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).is_some());
    let text = "use super::x::{Y, Z};\nuse crate::a::b;\nfn f() { crate::c::d() }";
    assert_eq!(paths("m::n", text), ["a::b", "c::d", "m::x::Y", "m::x::Z"]);
}
