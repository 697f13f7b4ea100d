package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"
)

const (
	// watchTime is how long the API server keeps one watch open.
	watchTime = 4 * time.Minute
	// maxPause is the longest pause before a watch that failed is begun again.
	maxPause = 30 * time.Second
)

// Watch calls `changed` whenever a pod of the cluster begins to run another image, and when it may
// have missed that, such as after each error, which it gives to `failed`. It returns when ctx ends,
// or if the cluster's configuration can't be read. It calls `changed` from several goroutines.
func Watch(ctx context.Context, o Options, changed func(), failed func(error)) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	done := make(chan struct{}, len(c.namespaces))
	for _, n := range c.namespaces {
		go func() {
			w := watcher{cluster: c, namespace: n, changed: changed, images: map[string]string{}}
			w.run(ctx, failed)
			done <- struct{}{}
		}()
	}
	for range c.namespaces {
		<-done
	}
	return nil
}

// watcher watches the pods of a namespace, or of all if it is "".
type watcher struct {
	*cluster
	namespace string
	changed   func()
	images    map[string]string // of each pod, by its UID
	version   string            // of the last event; "": begin anew
}

// run begins a watch after another. A watch that ends in order goes on from the version that it
// reached; after an error the version may be too old, so the next watch begins anew.
func (w *watcher) run(ctx context.Context, failed func(error)) {
	pause := time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := w.once(ctx)
		if err == nil && time.Since(began) < time.Second {
			err = errors.New("the API server ended the watch at once")
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if w.version = ""; time.Since(began) > maxPause {
			pause = time.Second
		}
		failed(fmt.Errorf("watching pods: %w", err))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

func (w *watcher) path() string {
	if w.namespace == "" {
		return "api/v1/pods"
	}
	return "api/v1/namespaces/" + url.PathEscape(w.namespace) + "/pods"
}

// once watches until the API server ends the watch. Without a version it asks for the present one
// first, and tells of a change, since nobody knows what happened before.
func (w *watcher) once(ctx context.Context) error {
	if w.version == "" {
		var list struct {
			typed
			Metadata struct {
				Version string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		if err := w.get(ctx, w.path(), url.Values{"limit": {"1"}}, "PodList", &list); err != nil {
			return err
		}
		if w.version = list.Metadata.Version; w.version == "" {
			return errors.New("the list of pods has no version")
		}
		clear(w.images)
		w.changed()
	}
	ctx, cancel := context.WithTimeout(ctx, watchTime+time.Minute)
	defer cancel()
	u := w.base.JoinPath(w.path())
	u.RawQuery = url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {w.version},
		"timeoutSeconds": {fmt.Sprint(int(watchTime.Seconds()))}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refused(resp.StatusCode, nil)
	}
	body := &bounded{Reader: resp.Body, most: w.cluster.event, left: w.cluster.event}
	for d := json.NewDecoder(body); d.More(); body.left = body.most {
		var e event
		if err := d.Decode(&e); err != nil {
			return err
		}
		if err := w.event(e); err != nil {
			return err
		}
	}
	return body.err
}

// bounded reads at most so many bytes, and then fails.
type bounded struct {
	io.Reader
	most, left int64
	err        error
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.err = fmt.Errorf("an event has more than %d bytes", b.most)
		return 0, b.err
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// event is an event of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (w *watcher) event(e event) error {
	if e.Type == "ERROR" { // such as 410: the version is too old
		return refused(http.StatusGone, e.Object)
	}
	var p pod
	if err := json.Unmarshal(e.Object, &p); err != nil {
		return fmt.Errorf("an event of a pod: %w", err)
	}
	if p.Metadata.ResourceVersion != "" {
		w.version = p.Metadata.ResourceVersion
	}
	switch e.Type {
	case "BOOKMARK":
	case "DELETED":
		delete(w.images, p.Metadata.UID)
	default:
		var d deployed
		d.pod(p)
		var names []string
		for _, i := range d.found {
			names = append(names, i.String())
		}
		slices.Sort(names)
		if now := fmt.Sprint(names); now != w.images[p.Metadata.UID] {
			w.images[p.Metadata.UID] = now
			w.changed()
		}
	}
	return nil
}
