# The front door. Everything here is thin: the work is done by meson and the scripts of tools/.
#
#   make quickstart   as root: from a bare Debian to code running in a microVM
#   make check        as root: the tests' packages, gates, unit tests, system tests
#   make check-kvm    as root: the product under a real KVM, in an emulated machine (8 minutes)
#   make bench        measurements, against floors and peers of the same run
#   make campaign     long fuzzing and crash campaigns (ROUND=short is what CI runs)
#   make install      PREFIX, DESTDIR; make uninstall keeps data unless PURGE=yes
#
# Variables: PREFIX (/usr/local), DESTDIR, CONFIG (/etc/space/space.conf), BUILD (build),
# BACKPORTS=no (stay with this release's QEMU), PURGE=yes (uninstall removes data too).

PREFIX  ?= /usr/local
DESTDIR ?=
CONFIG  ?= /etc/space/space.conf
BUILD   ?= build
ROUND   ?= long

export PREFIX DESTDIR CONFIG BUILD ROUND CAMPAIGN_SECONDS BACKPORTS PURGE

all: build

build:
	@tools/build

quickstart:
	@tools/quickstart

check:
	@tools/check-all

check-kvm: build
	@tools/setup/packages build runtime test
	@tests/kvm/run

gates:
	@tools/check

bench:
	@echo 'bench: installs what is missing of the Debian packages in tools/packages (build, runtime, test; runc and runsc are peers)'
	@tools/setup/packages build runtime test
	@bench/run

campaign:
	@tools/campaign

install: build
	@tools/install

uninstall:
	@tools/uninstall

format:
	@tools/gates/format --fix

clean:
	rm -rf '$(BUILD)' build-gate-*

help:
	@sed -n '3,/^$$/s/^# \{0,3\}//p' Makefile

.PHONY: all build quickstart check check-kvm gates bench campaign install uninstall format clean help
