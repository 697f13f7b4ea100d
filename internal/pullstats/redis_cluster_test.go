package pullstats

import (
	"context"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
)

// cluster is a Redis cluster for one test, with three masters.
type cluster struct {
	ports []int
	nodes []*redis.Client
	cmds  []*osexec.Cmd
	start []func() // starts a node
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close() //nolint:errcheck // the port is free again
	return l.Addr().(*net.TCPAddr).Port
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	program := redistest.Program(t)
	c := &cluster{}
	var buses []int
	for range 3 {
		dir, err := os.MkdirTemp("", "redis-")
		must(t, err)
		port, bus := freePort(t), freePort(t)
		i := len(c.ports)
		c.cmds = append(c.cmds, nil)
		c.start = append(c.start, func() {
			c.cmds[i] = osexec.Command(program, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(bus),
				"--cluster-node-timeout", "15000", "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", dir)
			must(t, c.cmds[i].Start())
		})
		c.start[i]()
		t.Cleanup(func() {
			c.kill(i)
			os.RemoveAll(dir) //nolint:errcheck // a leftover temporary directory harms nobody
		})
		node := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", port), DisableIdentity: true, Protocol: 2})
		t.Cleanup(func() { node.Close() }) //nolint:errcheck // the test is over
		until(t, "a node of the cluster", func() bool { return node.Ping(t.Context()).Err() == nil })
		c.ports, buses, c.nodes = append(c.ports, port), append(buses, bus), append(c.nodes, node)
	}
	for i, node := range c.nodes {
		must(t, node.ClusterAddSlotsRange(t.Context(), i*16384/3, (i+1)*16384/3-1).Err())
		must(t, node.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
	}
	for i := 1; i < 3; i++ {
		must(t, c.nodes[0].Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", c.ports[i], buses[i]).Err())
	}
	until(t, "the cluster", func() bool {
		for _, node := range c.nodes {
			info, err := node.ClusterInfo(t.Context()).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3") ||
				!strings.Contains(info, "cluster_slots_ok:16384") {
				return false
			}
		}
		return true
	})
	return c
}

// kill kills a node, which gets no time to tell the other nodes.
func (c *cluster) kill(i int) {
	c.cmds[i].Process.Kill() //nolint:errcheck // it may have ended
	c.cmds[i].Wait()         //nolint:errcheck // by the signal
}

// owner returns a key's slot and the node that has this slot when the cluster starts; move
// may give the slot to another node later.
func (c *cluster) owner(t testing.TB, key string) (node, slot int) {
	t.Helper()
	n, err := c.nodes[0].ClusterKeySlot(t.Context(), key).Result()
	must(t, err)
	return min(int(n)*3/16384, 2), int(n)
}

// move moves the slot of a key, with all keys in it, from the key's node to another one.
func (c *cluster) move(t testing.TB, key string, to int) {
	t.Helper()
	from, slot := c.owner(t, key)
	ids := make([]string, 3)
	for i, node := range c.nodes {
		id, err := node.Do(t.Context(), "CLUSTER", "MYID").Text()
		must(t, err)
		ids[i] = id
	}
	must(t, c.nodes[to].Do(t.Context(), "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err())
	must(t, c.nodes[from].Do(t.Context(), "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err())
	keys, err := c.nodes[from].ClusterGetKeysInSlot(t.Context(), slot, 1000).Result()
	must(t, err)
	for _, key := range keys {
		must(t, c.nodes[from].Do(t.Context(), "MIGRATE", "127.0.0.1", c.ports[to], key, 0, 5000).Err())
	}
	for _, i := range []int{to, from, 3 - to - from} {
		must(t, c.nodes[i].Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
	}
}

// A Redis cluster must record pulls, and serve Uses, live counts and flushes. Pulls must be
// counted once even if slots move to other nodes in the middle of a flush.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := open(t, true, 12)
	r, err := redispulls.NewClient(fmt.Sprint("redis://127.0.0.1:", c.ports[0]), s.stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	rec := s.recorder(t, r, unlogged)
	now := time.Now().UTC().Truncate(time.Microsecond)
	var all []audit.Entry
	record := func() {
		t.Helper()
		var list []audit.Entry
		for i := range 60 {
			tag := ""
			if i%4 > 0 {
				tag = fmt.Sprint("v", i%20)
			}
			list = append(list, s.pull(i%12, tag, fmt.Sprint(i%7), now.Add(time.Duration(len(all)+i)*time.Microsecond)))
		}
		batch := waiting(list)
		for deadline := time.Now().Add(time.Minute); len(batch) > 0; time.Sleep(10 * time.Millisecond) {
			kept, err := rec.queue.record(t.Context(), batch)
			if time.Now().After(deadline) || err == nil && len(kept) > 0 {
				t.Fatalf("%d pulls are kept: %v", len(kept), err)
			}
			batch = kept
		}
		all = append(all, list...)
	}
	flush := func(w *flusher) {
		t.Helper()
		var err error
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if err = w.Flush(t.Context()); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	record()
	shards := 0
	for _, node := range c.nodes {
		if len(keysOf(t, node)) > 3 {
			shards++
		}
	}
	if shards != 3 {
		t.Errorf("%d nodes have pulls, want 3", shards)
	}
	reader, err := NewReader(Options{DB: s.stats, Redis: r})
	must(t, err)
	live, err := reader.Live(t.Context(), s.repositories[1], func(context.Context, *Reader) error { return nil })
	must(t, err)
	if got, want := live.Tag(Row{Name: "v1"}).Count, truth(all)[tagName(s, 1, "v1")].Count; got != want || want == 0 {
		t.Errorf("%d live pulls, want %d", got, want)
	}
	flush(s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Batch = 5 }))
	compare(t, s.books(t), truth(all))
	record()
	w := s.flusher(t, r)
	w.crash = at("before commit", crashHere) // pulls that an earlier flush has counted stay counted
	if died, err := dies(func() error { return w.Flush(t.Context()) }); !died {
		t.Fatalf("nothing was added: %v", err)
	}
	key := counterKey(s.repositories[1], "v1", all[1].Digest)
	from, _ := c.owner(t, key)
	c.move(t, key, (from+1)%3)
	record()
	flush(s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Batch = 7 }))
	record() // counters keep growing on their present nodes
	flush(s.flusher(t, r))
	compare(t, s.books(t), truth(all))

	// One node goes down. A flush must fail because of this node's pulls, which it can't
	// read, but must still add the pulls that the other nodes have to the statistics.
	record()
	down := 0
	for _, key := range []string{epochKey, ownerKey} { // a flush can't begin without these keys
		if node, _ := c.owner(t, key); node == down {
			down = (down + 1) % 3
		}
	}
	for _, key := range []string{epochKey, ownerKey} {
		if node, _ := c.owner(t, key); node == down {
			down = (down + 1) % 3
		}
	}
	before := number(t, s.stats, "SELECT sum(total_pull_count) FROM manifestpullstatistics")
	c.kill(down)
	if err := s.flusher(t, r).Flush(t.Context()); err == nil {
		t.Error("a flush without a node succeeded")
	}
	if n := number(t, s.stats, "SELECT sum(total_pull_count) FROM manifestpullstatistics"); n <= before || n >= int64(len(all)) {
		t.Errorf("%d pulls are counted without a node, %d before, and %d with it", n, before, len(all))
	}
	c.start[down]()
	until(t, "the node", func() bool { return c.nodes[down].Ping(t.Context()).Err() == nil })
	flush(s.flusher(t, r))
	compare(t, s.books(t), truth(all))
	s.drained(t, c.nodes...)
	uses, err := s.worker(t, func(o *SyncOptions) { o.Redis = r }).Uses(t.Context(), s.repositories[1], []string{"v1", "v5", "v9"}, nil)
	must(t, err)
	for _, name := range []string{"v1", "v5", "v9"} {
		if uses.Tags[name].Before(now) {
			t.Errorf("%s was used at %v, want %v", name, uses.Tags[name], now)
		}
	}
}
