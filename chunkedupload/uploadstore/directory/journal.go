package directory

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// slotUnused ends a writer's file for good: its end may be damaged, so that
// nothing may be added.
const slotUnused = slotVoid

// journalFile is a journal that this process writes.
type journalFile struct {
	folder *folder
	file   *file
	name   string
	slotAt int64

	abandoned atomic.Bool // its writer was fenced off and has not closed it yet

	mu      sync.Mutex
	end     int64
	spoiled bool

	syncing sync.Mutex
	named   bool         // the name is durable
	synced  atomic.Int64 // what is durable; readers here see no more
}

// openJournal opens a journal of this process to go on with it.
func openJournal(f *folder, name string, j journal) (*journalFile, error) {
	file, err := f.edit(name)
	if err != nil {
		return nil, err
	}
	jf := &journalFile{folder: f, file: file, name: name, slotAt: j.slotAt, end: j.size}
	jf.synced.Store(j.size)
	return jf, nil
}

// set writes the slot. Whoever looks afterwards sees it; it is not durable.
func (j *journalFile) set(state int, now time.Time) error {
	return j.folder.show(j.name, appendSlot(nil, state, now), j.slotAt)
}

// record adds a record and makes it durable. Several callers share one sync.
func (j *journalFile) record(r record) error {
	end, err := j.add(r)
	if err == nil {
		err = j.syncTo(end)
	}
	if err != nil {
		j.spoil()
	}
	return err
}

func (j *journalFile) add(r record) (end int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.spoiled {
		return 0, errors.New("an earlier write to this state file failed")
	}
	line := r.appendTo(nil)
	if err := j.file.writeAt(line, j.end); err != nil {
		j.spoiled = true
		return 0, err
	}
	j.end += int64(len(line))
	return j.end, nil
}

func (j *journalFile) syncTo(end int64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.synced.Load() >= end {
		return nil
	}
	j.mu.Lock()
	target, spoiled := j.end, j.spoiled
	j.mu.Unlock()
	if spoiled {
		return errors.New("an earlier write to this state file failed")
	}
	err := j.file.sync()
	if err == nil && !j.named {
		err = j.folder.sync()
	}
	if err != nil {
		// Before the next one syncs: after a failure the system may forget
		// what it could not write, and report success.
		j.mu.Lock()
		j.spoiled = true
		j.mu.Unlock()
		return err
	}
	j.named = true
	j.synced.Store(target)
	return nil
}

// spoil stops all use of the journal after a fault, and takes back what was
// not acknowledged, as far as the disk lets it.
func (j *journalFile) spoil() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spoiled = true
	if n := j.end - j.synced.Load(); n > 0 {
		blank := make([]byte, n)
		for i := range blank {
			blank[i] = ' '
		}
		_ = j.file.writeAt(blank, j.synced.Load())
		j.end = j.synced.Load()
	}
}

// usable reports whether records can still be added.
func (j *journalFile) usable() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.spoiled
}

// finish writes the last state and closes the file.
func (j *journalFile) finish(u *upload) error {
	state := slotEnded
	if !j.usable() {
		state = slotUnused
	}
	now, err := u.time()
	if err == nil {
		err = j.set(state, now)
	}
	return errors.Join(err, j.file.close())
}

// readJournal reads a journal: of this process's own only what is durable, and
// of others' what it makes durable itself if it is young enough not to be. What
// is shown must not be lost with the power.
func (u *upload) readJournal(f *folder, kind, name string) (j journal, raw []byte, written time.Time, err error) {
	own := u.store.ownJournal(u.id, name)
	b, written, err := f.read(name)
	if err != nil {
		return journal{}, nil, written, err
	}
	raw = b
	if own != nil {
		b = b[:min(int64(len(b)), own.synced.Load())]
	}
	if j, err = parseJournal(kind, b); err != nil {
		return j, raw, written, err
	}
	if own == nil && j.token != u.store.token && len(j.records) > 0 {
		err = u.settleRecords(f, name, j.records[len(j.records)-1].time)
	}
	return j, raw, written, err
}

func (u *upload) settleRecords(f *folder, name string, newest time.Time) error {
	if recent, err := u.recent(newest); err != nil || !recent {
		return err
	}
	file, err := f.open(name)
	if err != nil {
		return err
	}
	return errors.Join(full(syncData(file)), full(file.Close()), f.sync())
}

// ownJournal returns the journal of that name if this process has it open.
func (s *Store) ownJournal(id, name string) *journalFile {
	s.mu.Lock()
	e := s.entries[id]
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open[name]
}
