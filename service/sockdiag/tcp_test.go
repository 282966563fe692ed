package sockdiag

import (
	"io"
	"net"
	"testing"
)

// TestConnections: both ends of a connection are listed with what they have sent, in both families.
func TestConnections(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		t.Run(listen, func(t *testing.T) {
			path, in := namespace(t)
			var client, server net.Conn
			in(func() error {
				l, err := net.Listen("tcp", listen)
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				_, port, _ := net.SplitHostPort(l.Addr().String())
				to := l.Addr().String()
				if listen == ":0" { // a socket of IPv6 that is connected by IPv4
					to = "127.0.0.1:" + port
				}
				if client, err = net.Dial("tcp", to); err != nil {
					return err
				}
				if server, err = l.Accept(); err != nil {
					return err
				}
				if _, err = client.Write(make([]byte, 1000)); err != nil {
					return err
				}
				_, err = io.ReadFull(server, make([]byte, 1000))
				return err
			})
			defer client.Close()
			defer server.Close()
			n, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			list, err := n.Connections()
			if err != nil || len(list) != 2 {
				t.Fatalf("%+v, %v", list, err)
			}
			if list[0].Accepted {
				list[0], list[1] = list[1], list[0]
			}
			c, s := list[0], list[1]
			if c.Accepted || !s.Accepted || c.Local != s.Remote || c.Remote != s.Local || c.Cookie == s.Cookie ||
				c.Local.String() != client.LocalAddr().String() || c.Remote.String() != client.RemoteAddr().String() {
				t.Errorf("client %+v, server %+v", c, s)
			}
			// SYN, ACK and data of the client; SYN+ACK and an ACK of the server.
			if c.SentBytes != 1000 || s.ReceivedBytes != 1000 || c.ReceivedBytes != 0 || s.SentBytes != 0 ||
				c.Sent < 3 || s.Received < 2 || s.Sent < 1 || c.Received < 1 {
				t.Errorf("client %+v, server %+v", c, s)
			}
		})
	}
}
