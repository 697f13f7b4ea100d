package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestWatch: pods start, change without and with another image, and go; the watch expires and begins
// anew. Each change of images is told once, and that something may have been missed.
func TestWatch(t *testing.T) {
	t.Parallel()
	event := func(kind, object string) string { return fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", kind, object) }
	starting := running("web-1", "Pending", "r.example/web:v1", "")
	started := running("web-1", "Running", "r.example/web:v1", "r.example/web@"+one)
	script := make(chan string, 2)
	script <- event("ADDED", starting) + event("MODIFIED", starting) + event("MODIFIED", started) + event("MODIFIED", started) +
		event("BOOKMARK", `{"kind":"Pod","metadata":{"resourceVersion":"12"}}`) + event("ERROR", `{"kind":"Status","code":410,"message":"too old resource version"}`)
	script <- event("ADDED", started) + event("DELETED", started)
	var versions []string
	a := &apiServer{page: 1, objects: map[string][]string{"/api/v1/pods": {started}}}
	o := a.options(t)
	a.watch = func(w http.ResponseWriter, r *http.Request) {
		versions = append(versions, r.URL.Query().Get("resourceVersion"))
		select {
		case text := <-script:
			fmt.Fprint(w, text)
			w.(http.Flusher).Flush()
			if strings.Contains(text, "DELETED") {
				<-r.Context().Done()
			}
		case <-r.Context().Done():
		}
	}
	changes, failures := make(chan struct{}, 100), make(chan error, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, o, func() { changes <- struct{}{} }, func(err error) { failures <- err }) }()
	for n := range 5 { // the list, the pod, its start; the list, the pod
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatalf("only %d changes were told", n)
		}
	}
	if err := <-failures; !strings.Contains(err.Error(), "too old resource version") {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil || len(changes) > 0 || len(failures) > 0 {
		t.Errorf("%v, %d more changes, %d more errors", err, len(changes), len(failures))
	}
	if got := strings.Join(versions, " "); got != "7 7" {
		t.Errorf("watched from the versions %s", got)
	}
}

// TestWatchOfALargeEvent: an event that is too large, or that never ends, isn't read into memory. It is
// told, and the watch begins anew.
func TestWatchOfALargeEvent(t *testing.T) {
	t.Parallel()
	a := &apiServer{page: 1}
	o := a.options(t)
	o.event = 4096
	a.watch = func(w http.ResponseWriter, r *http.Request) {
		for _, part := range []string{`{"type":"ADDED","object":` + running("web-1", "Running", "r.example/web:v1", "r.example/web@"+one) + "}\n", `{"type":"ADDED","object":{"a":"`, strings.Repeat("a", 8192)} {
			fmt.Fprint(w, part)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	changes, failures := make(chan struct{}, 100), make(chan error, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, o, func() { changes <- struct{}{} }, func(err error) { failures <- err }) }()
	for range 2 { // the list, the pod before the event
		<-changes
	}
	if err := <-failures; !strings.Contains(err.Error(), "more than 4096 bytes") {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
