"""One HTML file that shows what was tried, what won, why, and how sure that is: see `Report`."""

from tunesmith.report.html.gather import Search, from_recording, from_store, from_summary
from tunesmith.report.html.report import Report

__all__ = ["Report", "Search", "from_recording", "from_store", "from_summary"]
