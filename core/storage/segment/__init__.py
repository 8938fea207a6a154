"""A segment of a log, its data file and indexes: appends, searches, scans."""
