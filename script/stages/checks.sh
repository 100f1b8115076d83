# shellcheck shell=bash
# The stages "shell" and "models" of script/test.

stage_shell() {
	local scripts script
	mapfile -t scripts < <(grep -rlIE --exclude-dir=.git --exclude-dir=target \
		'^(#!/bin/(ba)?sh|# shellcheck shell=bash)$' "$ROOT")
	check shellcheck -x "${scripts[@]}"
	# flake8 finds only files *.py in a folder.
	mapfile -t scripts < <(cd "$ROOT" && grep -rlIx --exclude='*.py' --exclude-dir={target,build} \
		'#!/usr/bin/env python3' bench clients/conformance notify script/checks)
	check env -C "$ROOT" flake8 bench clients/conformance "$ROOT"/examples/check*.py notify \
		script/checks "${scripts[@]}"
	for script in layers metadata docs format; do
		check "$ROOT/script/checks/$script"
	done
	check python3 -B -m doctest "$ROOT/bench/measurement.py"
	check python3 -B -m doctest "$ROOT/bench/moved.py"
}

stage_models() {
	count_last_line script/checks/models "$ROOT/script/checks/models"
}
