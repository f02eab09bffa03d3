"""Audit what is installed for known vulnerabilities, where the advisories can be reached.

python tools/audit.py
"""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> int:
    """Run pip-audit; 1 where something is known to be vulnerable, 0 where nothing is or nothing could be asked."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip_audit",
            "--local",
            "--skip-editable",
            "--format",
            "json",
            "--progress-spinner",
            "off",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    try:
        audited = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"audit: pip-audit could not run here: {last}")
        return 0
    unknown = [each["name"] for each in audited if "skip_reason" in each]
    bad = [(each["name"], each["version"], vuln) for each in audited for vuln in each.get("vulns", [])]
    for name, version, vuln in bad:
        print(f"audit: {name} {version}: {vuln['id']}, mended in {', '.join(vuln['fix_versions']) or 'no version yet'}")
    asked = len(audited) - len(unknown)
    print(f"audit: {asked} packages asked for, {len(bad)} advisories; {len(unknown)} not known there")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
