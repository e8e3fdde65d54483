"""Debian 12's own QEMU, 7.2, unpacked beside the installed one: what BACKPORTS=no runs on.

Nothing is installed: the packages are downloaded and unpacked into a directory, where QEMU finds
its firmware and modules relative to the program. Libraries are those of the machine."""

import subprocess

PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data")
SERIES = "1:7.2"


class Unavailable(AssertionError):
    pass


def _output(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _version(package):
    for line in _output("apt-cache", "madison", package).splitlines():
        version = line.split("|")[1].strip()
        if version.startswith(SERIES):
            return version
    return None


def _versions():
    return {package: _version(package) for package in PACKAGES}


def unpack(folder):
    """The path of a qemu-system-x86_64 7.2 below folder. Raises Unavailable."""
    versions = _versions()
    if None in versions.values():
        _output("apt-get", "update", "-q")
        versions = _versions()
    if None in versions.values():
        raise Unavailable(f"apt knows no QEMU 7.2: {versions}")
    folder.mkdir(parents=True)
    _output("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root",
            *(f"{package}={version}" for package, version in versions.items()), cwd=folder)
    for package in folder.glob("*.deb"):
        _output("dpkg-deb", "-x", str(package), str(folder))
    program = folder / "usr/bin/qemu-system-x86_64"
    said = _output(str(program), "--version")
    if "version 7.2" not in said:
        raise Unavailable(f"{program}: {said.splitlines()[0]}")
    return program
