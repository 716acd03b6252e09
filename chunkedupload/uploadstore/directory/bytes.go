package directory

import "errors"

// errCutOff: the bytes have been synced before they were acknowledged, so that
// something else than a gateway or a crash took them away.
var errCutOff = errors.New("received bytes are gone")

// Bytes are sent on to the disk in windows while more come, so that no more
// than three windows of an upload wait unwritten in the system's memory. That
// is for the bound, not for speed: smaller windows made large uploads a quarter
// slower, larger ones or none made no difference.
const (
	writeBackEvery = 32 << 20
	writeBackQueue = 1
)

// bytesFile writes an upload's bytes, one after another from an offset.
type bytesFile struct {
	file    *file
	offset  int64
	window  int64         // where bytes begin that were not sent on
	windows chan [2]int64 // nil until there is one
	idle    chan struct{} // closed when all windows are written
}

func openBytes(f *folder, offset int64) (*bytesFile, error) {
	file, err := f.edit("data")
	return &bytesFile{file: file, offset: offset, window: offset}, err
}

// reaches says ErrBroken where received bytes are missing from the end: going
// on behind them would leave a hole that nobody notices.
func (d *bytesFile) reaches(offset int64) error {
	stat, err := d.file.os.Stat()
	if err == nil && stat.Size() < offset {
		err = broken("data", errCutOff)
	}
	return full(err)
}

func (d *bytesFile) write(b []byte) error {
	if err := d.file.writeAt(b, d.offset); err != nil {
		return err
	}
	d.offset += int64(len(b))
	if d.offset-d.window >= writeBackEvery {
		d.sendOn()
	}
	return nil
}

// sendOn hands a window over. Its errors come back at the sync.
func (d *bytesFile) sendOn() {
	if d.windows == nil {
		d.windows, d.idle = make(chan [2]int64, writeBackQueue), make(chan struct{})
		go func(windows chan [2]int64, idle chan struct{}) {
			defer close(idle)
			for w := range windows {
				_ = writeBack(d.file.os, w[0], w[1])
			}
		}(d.windows, d.idle)
	}
	d.windows <- [2]int64{d.window, d.offset}
	d.window = d.offset
}

// rest ends the background's work.
func (d *bytesFile) rest() {
	if d.windows != nil {
		close(d.windows)
		<-d.idle
		d.windows = nil
	}
}

// sync makes all bytes written so far durable.
func (d *bytesFile) sync() error { return d.file.sync() }

func (d *bytesFile) close() error {
	d.rest()
	return d.file.close()
}
