package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"

	"myelin/l7/config"
)

// maxConfig bounds a configuration, in bytes: 100,000 names take 10 MB.
const maxConfig = 256 << 20

// cborType is the content type of records for a client that accepts it: agents read tens of thousands a second, and
// JSON takes twice the time. Others get JSON.
const cborType = "application/cbor"

// recordsWait is for how long a request for records waits for one.
const recordsWait = 20 * time.Second

// Serve answers requests until the context ends.
func Serve(ctx context.Context, l net.Listener, h Handler) error {
	encoding, err := cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode()
	if err != nil {
		return fmt.Errorf("prepare the encoding of records: %w", err)
	}
	mux := http.NewServeMux()
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	mux.HandleFunc("PUT /v1/config", func(w http.ResponseWriter, r *http.Request) {
		c := new(config.Config)
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(c)
		if err == nil {
			err = h.Configure(c)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { write(w, h.Status()) })
	mux.HandleFunc("GET /v1/names", func(w http.ResponseWriter, _ *http.Request) { write(w, h.Names()) })
	mux.HandleFunc("GET /v1/records", func(w http.ResponseWriter, r *http.Request) {
		from, err := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
		if err != nil {
			http.Error(w, "from: "+err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), recordsWait)
		defer cancel()
		records := h.Records(ctx, from)
		if r.Header.Get("Accept") == cborType {
			w.Header().Set("Content-Type", cborType)
			_ = encoding.NewEncoder(w).Encode(records) // an error is the client's, which has gone
			return
		}
		write(w, records)
	})
	mux.HandleFunc("POST /v1/records", func(w http.ResponseWriter, r *http.Request) {
		var list []Record
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(&list); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.Add(list)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, _ *http.Request) {
		h.Drain()
		server.SetKeepAlivesEnabled(false) // clients find the proxy that takes over with their next request
		w.WriteHeader(http.StatusNoContent)
	})
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the control socket: %w", err)
	}
	return nil
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// An error is the client's, which has gone.
	_ = json.NewEncoder(w).Encode(v)
}

// ServeNamespace hands a descriptor of the network namespace to each client, until the listener is closed.
func ServeNamespace(l *net.UnixListener, namespace *os.File) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		// An error is the client's, which has gone.
		_, _, _ = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(namespace.Fd())), nil)
		conn.Close()
	}
}
