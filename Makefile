# Every target sets up what it needs (scripts/setup); nothing has to be prepared.
.PHONY: help demo test test-all lint format tidy bench peers setup clean
.DEFAULT_GOAL := help

help:     ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo:     ## run the main job on a small language model
	@scripts/setup
	@.venv/bin/onnx-light demo

test:     ## all tests but the long ones, C++ and Python
	@scripts/setup dev
	@scripts/test

test-all: ## all tests, with clang, sanitizers, fuzzing and clang-tidy, too
	@scripts/setup dev clang
	@scripts/test -m "long or not long"
	@scripts/cpp_tests clang asan-ubsan tsan
	@scripts/python_tests_asan
	@scripts/fuzz 300
	@scripts/tidy

lint:     ## check form and types
	@scripts/setup dev
	@scripts/lint

format:   ## format all sources, then lint
	@scripts/setup dev
	@scripts/lint --fix

tidy:     ## clang-tidy
	@scripts/setup dev
	@scripts/tidy

bench:    ## measure speed and size against other programs
	@scripts/setup dev peers
	@scripts/bench

peers:    ## install what bench compares with
	@scripts/setup dev peers

setup:    ## make .venv with the package and all that tests need
	@scripts/setup dev

clean:    ## remove .venv and everything that was built
	rm -rf .venv build dist
