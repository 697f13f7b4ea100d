package password

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
)

// task is a computation of a Hasher. Its fields are bytes, since a client's password may be any
// bytes.
type task struct {
	Password []byte
	Hash     []byte // to check the password against; nil: make a hash
}

// result is a task's result.
type result struct {
	Hash    string // the new hash
	OK      bool   // the password is that of the task's hash
	Invalid bool   // the task's hash can't be read, see errHash
}

func (t task) compute() (r result) {
	if t.Hash == nil {
		r.Hash = newArgon2(string(t.Password)).String()
		return r
	}
	ok, err := compare(string(t.Password), string(t.Hash))
	return result{OK: ok, Invalid: err != nil}
}

// Work computes hashes for a Hasher of another process until the input ends: it reads tasks and
// writes their results, each a line of JSON. HasherOptions.Command starts a process that calls
// Work.
func Work(in io.Reader, out io.Writer) error {
	tasks, results := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var t task
		switch err := tasks.Decode(&t); {
		case err == io.EOF: //nolint:errorlint // Decode returns it as it is
			return nil
		case err != nil:
			return fmt.Errorf("reading the next password to hash: %w", err)
		}
		if err := results.Encode(t.compute()); err != nil {
			return fmt.Errorf("returning a password's hash: %w", err)
		}
	}
}

// process is a process that calls Work. It starts with its first task, and again after it has
// failed. Only one goroutine may use it at a time.
type process struct {
	command func() *exec.Cmd
	cmd     *exec.Cmd // nil: none runs
	in      io.WriteCloser
	out     *json.Decoder
}

// compute lets the process do a task. After an error, the process has ended.
func (p *process) compute(t task) (r result, err error) {
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	if p.cmd == nil {
		if err := p.start(); err != nil {
			return r, fmt.Errorf("starting it: %w", err)
		}
	}
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(t); err != nil {
		return r, err
	}
	if _, err := p.in.Write(line.Bytes()); err != nil {
		return r, fmt.Errorf("giving it a password: %w", err)
	}
	if err := p.out.Decode(&r); err != nil {
		return r, fmt.Errorf("reading its answer: %w", err)
	}
	return r, nil
}

func (p *process) start() error {
	cmd := p.command()
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := startLow(cmd); err != nil {
		return err
	}
	p.cmd, p.in, p.out = cmd, in, json.NewDecoder(out)
	return nil
}

// stop ends the process, if it runs.
func (p *process) stop() {
	if p.cmd == nil {
		return
	}
	p.in.Close()         //nolint:errcheck // the process is killed next
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
	p.cmd.Wait()         //nolint:errcheck // it was killed
	p.cmd = nil
}
