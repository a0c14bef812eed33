.PHONY: help run test check bench soak

help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Start the service; settings come from the environment (make run PORT=9000 LIMIT=5)
	@cargo run --release --locked

test: ## Run all tests; installs a redis-server when there is none
	@scripts/need-redis
	cargo test --locked
	cargo test --locked --features tls --test it redis::tls

check: ## Check format, lints, documentation, and the library without its features
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy
	cargo fmt --check
	cargo clippy --locked --all-targets --all-features -- -D warnings
	cargo clippy --locked --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --all-features

bench: ## Measure everything beside something; tables and pictures in target/bench (wrk and redis for some of it)
	cargo bench --locked --bench decisions --bench growth --bench http --bench shared --bench attacks --bench peers --bench replay

soak: ## Some minutes of mixed load, attacks and store faults; fails when anything is left behind
	@scripts/need-redis
	cargo bench --locked --bench soak
