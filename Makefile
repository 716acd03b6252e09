# run: try it. test: everything that must hold. The others are for developing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.PHONY: build run test install lint bench fuzz clean

# A source tree that belongs to another user has no usable version stamp.
GO_BUILD := go build -buildvcs=false
FUZZ_TIME ?= 20s
BENCH_TIME ?= 1s
BENCH_FLAGS ?=

build:
	$(GO_BUILD) -o bin/gatehouse ./caddymodule/gatehouse

run: build
	@echo "Open http://localhost:$${GATEHOUSE_DEMO_PORT:-8080} (end with Ctrl-C)"
	exec bin/gatehouse run --config Caddyfile.example

install:
	@.ci/install

test: install
	go vet ./...
	go test -race -timeout 20m ./...

lint:
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	@if command -v staticcheck >/dev/null; then staticcheck ./...; \
	else echo "staticcheck is not installed: go install honnef.co/go/tools/cmd/staticcheck@latest"; fi

bench:
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCH_TIME) ./...
	@command -v wrk >/dev/null || { echo "for the gateway's figures: apt-get install wrk"; exit 1; }
	go run -buildvcs=false ./internal/bench $(BENCH_FLAGS)

fuzz:
	@.ci/fuzz $(FUZZ_TIME)

clean:
	rm -rf bin
