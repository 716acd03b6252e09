// Package directory keeps uploads in a directory that any number of gateways
// share with no other store beside it: a local disk, NFS (version 3 or later)
// or SMB.
//
// # Layout
//
//	store                 format version and the directory's own id
//	tmp/, trash/          what is being made, what is being removed
//	<id[:2]>/<id>/
//	  info                what was known at creation
//	  data                the bytes, at their places
//	  w.<epoch>           serial uploads: one file for each change of writer
//	  y.<epoch>           somebody asks the writer of that epoch to yield
//	  j.<n>               chunked uploads: what one gateway has received
//	  claim.<n>           one file for each claim
//	  length, outcome     created once
//	  aborted             the upload counts as gone
//
// Every state file carries a format version; one of a later version makes the
// upload ErrBroken here and is not changed or removed. Files and folders that
// are not of this form are left alone.
//
// # Guarantees
//
//   - What only one gateway may do is decided by a name that can be created
//     once (exclusive create, a link, or the rename of a complete folder).
//     Whether another did it is learnt by opening the file, never from a stat or a
//     listing, which clients of file servers answer from memory.
//   - A commit writes the bytes to disk, then a record to disk, then looks
//     whether another writer has taken over, and only then is acknowledged.
//     One who takes over creates its file first and reads the records after:
//     either it sees the record, or the older writer sees its file. An
//     acknowledged byte therefore survives kill -9 and power loss, and an
//     offset once shown never goes down. Writers and claims exclude each other
//     in the same way.
//   - Liveness is in the content of files, in the file server's time, so that
//     the gateways' own clocks do not matter. A serial writer changes its file
//     every second; one whose file does not change for four seconds is dead or
//     stuck and is taken over. A chunk's writer and a claim lapse after 60 s.
//   - A state file that is empty or cut off is taken as being written for 60 s,
//     by the file server's clock, and as the trace of a crash after that.
//   - No space (ENOSPC, EDQUOT, EFBIG), also when first reported by a sync or a
//     close, is ErrFull, and nothing of that commit is received. A writer whose sync
//     failed commits nothing more; the next writer starts at the last commit.
//
// # Limits
//
//   - A writer that was fenced off notices within a second, and at each commit.
//     What it wrote until then lies at the offsets that it was sent for, so it
//     is the same bytes for a client that sends one file. A client that sends
//     different bytes for the same offsets at the same time gets either, and
//     harms nobody else. A chunk that is received is not written again by
//     later writers.
//   - A length given while another gateway receives more than that cuts the
//     upload there.
//   - The file server must keep what a sync has confirmed, and clients must not
//     cache absence: NFS with lookupcache=positive and without nocto; SMB on
//     Linux with LookupCacheEnabled 0, on Windows with FileNotFoundCacheLifetime
//     and DirectoryCacheLifetime 0. SMB cannot sync directories: there the names
//     of new files are as durable as the server makes them.
//   - On file systems without hard links a state file may be seen half written,
//     and one that a full disk cut off stays: a claim that could not be written is
//     then taken for a lapsed one.
//   - A directory that vanishes while a store is open (an unmounted share) is
//     an error from then on, and not an empty store.
package directory
