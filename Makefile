# Needs Go (the version in go.mod), bash and make. The targets "packages" and "tools" install
# or fetch everything else, or name what is missing.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

FUZZTIME ?= 20s
DURATION ?= 1h
# What "make image" and "make deb" make. Its files have the commit's time, so equal sources give equal bytes.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
PLATFORMS ?= linux/amd64,linux/arm64
RELEASE_TIME ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# The race detector needs a C compiler.
RACE = $(shell [ "$$(go env CGO_ENABLED)" = 1 ] && command -v "$$(go env CC)" >/dev/null && echo -race)
# Runs steps of checks and tests, and tells at the end how long they took and what failed.
SUITE = go run ./tools/suite

.PHONY: help run build image deb test test-all test-short lint unit e2e ops model fuzz soak bench packages tools clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

run: ## start a registry on 127.0.0.1:5000
	go run ./cmd/purser serve

build: ## build the commands into bin/
	go build -trimpath -o bin/ ./cmd/...

image: ## an OCI layout of the container image in bin/image, for PLATFORMS
	@tool=$$(tools/get image); SOURCE_DATE_EPOCH=$(RELEASE_TIME) "$$tool" -o bin/image -version "$(VERSION)" -platform "$(PLATFORMS)"

deb: ## a Debian package in bin/, for this machine's architecture
	@SOURCE_DATE_EPOCH=$(RELEASE_TIME) tools/deb bin "$(VERSION)"

test: ## what CI runs: checks, and tests within minutes
	@$(SUITE) fast

test-all: ## every test, with the race detector and more of everything: for the night
	@FUZZTIME=$(FUZZTIME) $(SUITE) all

test-short: ## the quick tests, with what is installed
	go test -short -timeout 5m ./... ./bench/... ./e2e/... ./loosefk/... ./loosefk/contrib/... ./loosefk/integrationtest/...

lint: ## gofmt, and the checks of go vet, staticcheck and tools/analyzers
	@$(SUITE) lint

unit: ## the tests of the packages that "make test" runs
	@$(SUITE) unit

e2e: ## the end-to-end tests that "make test" runs: real clients against the real binary
	@$(SUITE) e2e

ops: ## upgrades, failovers and the procedures of the documentation
	@$(SUITE) ops

model: ## every interleaving of garbage collection, in a model; needs spin
	@tools/model

fuzz: ## every fuzz function for FUZZTIME
	@RACE=$(RACE) tools/fuzz $(FUZZTIME)

soak: packages tools ## random traffic, kills and a failing store for DURATION, default 1h, or until interrupted
	PURSER_TEST_SOAK=$(DURATION) go test $(RACE) -tags all -count=1 -timeout 0 -v -run '^TestSoak$$' ./e2e

bench: ## the benchmarks: without ARGS it lists them, ARGS="gc -h" lists the flags of one
	go run ./bench $(ARGS)

packages: ## install the programs that tests drive, where that is possible
	@tools/packages

tools: ## build the tools that tests drive
	@tools/get versitygw pebble crane regctl analyzers oidcprovider image

clean: ## remove what was built here; data and caches stay
	rm -rf bin
