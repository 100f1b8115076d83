# pg_pinpoint: builds and installs every part for the server that PG_CONFIG
# names, as in "make install PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config".

PARTS = notify decoding

PG_CONFIG ?= pg_config

.PHONY: all install uninstall installcheck clean clean-bench bench check

all install uninstall installcheck clean:
	@set -e; for part in $(PARTS); do \
		$(MAKE) -C $$part PG_CONFIG='$(PG_CONFIG)' $@; \
	done

clean: clean-bench

clean-bench:
	rm -rf bench/target

# The library finds the cargo that script/bootstrap has installed.
bench:
	bash -c '. script/lib/common.sh && exec "$$@"' bash \
		cargo build --release --locked --manifest-path bench/Cargo.toml

# Installs every part first: the tests run on the server of PG_CONFIG. Unlike
# installcheck, which is for a server that is running, and is what packagers use.
check:
	PG_CONFIG='$(PG_CONFIG)' script/test
