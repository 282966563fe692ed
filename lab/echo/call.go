package echo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Call asks a server once, by a URL of scheme http, tcp or udp, and returns what it answered; for tcp and udp that is
// the line sent, and "from ADDRESS". Every call is a new connection. ctx bounds it.
func Call(ctx context.Context, target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", fmt.Errorf("call: %w", err)
	}
	switch u.Scheme {
	case "http":
		return callHTTP(ctx, target)
	case "tcp", "udp":
		return callRaw(ctx, u.Scheme, u.Host)
	}
	return "", fmt.Errorf("call %s: want a URL that begins with http, tcp or udp", target)
}

func callHTTP(ctx context.Context, target string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", fmt.Errorf("call: %w", err)
	}
	// No proxy, whatever the environment says: it would not be in this namespace.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("call: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("call %s: %w", target, err)
	}
	if resp.StatusCode != http.StatusOK {
		return string(body), fmt.Errorf("call %s: %s", target, resp.Status)
	}
	return string(body), nil
}

func callRaw(ctx context.Context, network, addr string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return "", fmt.Errorf("call: %w", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ping := []byte("hello from " + c.LocalAddr().String() + "\n")
	if _, err := c.Write(ping); err != nil {
		return "", fmt.Errorf("call %s://%s: %w", network, addr, err)
	}
	pong := make([]byte, len(ping))
	if _, err := io.ReadFull(c, pong); err != nil {
		return "", fmt.Errorf("call %s://%s: %w", network, addr, err)
	}
	if !bytes.Equal(ping, pong) {
		return "", fmt.Errorf("call %s://%s: sent %q, got %q", network, addr, ping, pong)
	}
	return fmt.Sprintf("%sfrom %s\n", pong, c.RemoteAddr()), nil
}
