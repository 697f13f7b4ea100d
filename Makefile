# Needs Go (the version in go.mod), bash and make. The targets "packages" and "tools" install
# or fetch everything else, or name what is missing.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

FUZZTIME ?= 2s
DURATION ?= 1h
# What "make image" and "make deb" make. Its files have the commit's time, so equal sources give equal bytes.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
PLATFORMS ?= linux/amd64,linux/arm64
RELEASE_TIME ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# The race detector needs a C compiler.
RACE = $(shell [ "$$(go env CGO_ENABLED)" = 1 ] && command -v "$$(go env CC)" >/dev/null && echo -race)
# The packages of all modules: the registry, the benchmarks, and the test of loosefk that
# needs the libraries of migration tools.
PACKAGES = ./... ./bench/... ./loosefk/migratetest/...
say = @echo; echo "==> $$(date +%T) $(1)"

.PHONY: help run build image deb test test-short lint gofmt vet staticcheck analyzers unit model fuzz e2e e2e-all ops soak bench packages tools clean

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

test: packages tools lint unit fuzz e2e ## everything that CI runs
	$(call say,all of it passed)

test-short: ## the quick tests, with what is installed
	go test -short -timeout 5m $(PACKAGES)

lint: gofmt vet staticcheck analyzers ## gofmt, go vet, staticcheck and tools/analyzers

gofmt:
	$(call say,gofmt)
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "not formatted; run gofmt -w on:"; echo "$$files"; exit 1; }

vet:
	$(call say,go vet)
	go vet $(PACKAGES)
	go vet -tags e2e_all,ops ./e2e

staticcheck:
	$(call say,staticcheck)
	@command=$$(tools/get staticcheck); echo "staticcheck $(PACKAGES)"; "$$command" $(PACKAGES)

analyzers:
	$(call say,analyzers)
	GOWORK=off go build -C tools/analyzers -o "$(CURDIR)/bin/analyzers" .
	go vet -vettool="$(CURDIR)/bin/analyzers" $(PACKAGES)

unit:
	$(call say,tests of the packages)
	go test $(RACE) -timeout 15m $$(go list $(PACKAGES) | grep -v '/e2e$$')

model: ## every interleaving of garbage collection, in a model; needs spin
	$(call say,model of garbage collection)
	@tools/model

fuzz: ## every fuzz function for FUZZTIME, default 2s
	$(call say,fuzzing)
	@RACE=$(RACE) tools/fuzz $(FUZZTIME)

e2e: packages tools ## real clients against the real binary
	$(call say,end-to-end tests)
	go test $(RACE) -count=1 -timeout 30m ./e2e

e2e-all: packages tools ## e2e with helm, cosign and a Kubernetes API too, which are slow to build
	$(call say,end-to-end tests with helm, cosign and a Kubernetes API)
	@nice tools/get kubeapi helm cosign >/dev/null
	go test $(RACE) -tags e2e_all -count=1 -timeout 40m ./e2e
	go test -tags e2e_all -count=1 -timeout 10m -run TestPostgresUpgrade ./cmd/purser

ops: packages tools ## upgrades, failovers and the procedures of the documentation
	$(call say,operations)
	@tools/packages ops
	go test $(RACE) -tags ops -count=1 -timeout 40m -v -run '^TestOps' ./e2e

soak: packages tools ## random traffic, kills and a failing store for DURATION, default 1h, or until interrupted
	$(call say,soaking for $(DURATION) of traffic)
	PURSER_TEST_SOAK=$(DURATION) go test $(RACE) -count=1 -timeout 0 -v -run '^TestSoak$$' ./e2e

bench: ## the benchmarks: without ARGS it lists them, ARGS="gc -h" lists the flags of one
	go run ./bench $(ARGS)

packages:
	$(call say,programs of the system)
	@tools/packages

tools:
	$(call say,tools)
	@tools/get versitygw pebble crane regctl staticcheck oidcprovider image

clean: ## remove what was built here; data and caches stay
	rm -rf bin
