"""Names of folders that programs often mishandle."""

# Blanks, what is special to make, shells, Python or URLs, non-ASCII letters; no colon, which separates PATH.
ODD = "a b\tc'd\"e#f$g%20h`i`(j)[k]{l}*&;\\m=,~|<n>?!@o+p^q-\u00fc\u65e5"
NEWLINE = "new\nline"
NOT_UTF8 = "\udcff\udcfe"  # as Python writes bytes that are not
