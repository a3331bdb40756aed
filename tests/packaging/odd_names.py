"""Names of folders that programs stumble over."""

# Blanks, what make, shells, Python and URLs mind, letters beyond ASCII; no colon, which ends a path in PATH.
ODD = "a b\tc'd\"e#f$g%20h`i`(j)[k]{l}*&;\\m=,~|<n>?!@o+p^q-\u00fc\u65e5"
NEWLINE = "new\nline"
NOT_UTF8 = "\udcff\udcfe"  # as Python writes bytes that are not
