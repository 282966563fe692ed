package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/rand"

	"myelin/config"
	"myelin/internal/logs"
	"myelin/kube"
	"myelin/operator"
)

// namespaceEnv has the pod's namespace, from metadata.namespace of the pod.
const namespaceEnv = "POD_NAMESPACE"

// operatorQPS is how many requests a second the operator may make: a new cluster's CiliumNodes are one each.
const operatorQPS = 50

// operatorFlags are those of `myelin operator`.
type operatorFlags struct {
	file, kubeConfig, listen, metrics, namespace, logFormat string
	leaderElect, migrate                                    bool
	certificates                                            operator.HubbleCertificates
}

func operatorCommand() *cobra.Command {
	var f operatorFlags
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the operator: CRDs, policy status, load balancer addresses",
		Long: "The operator defines Cilium's kinds, says in policies' status what becomes of them, and gives nodes " +
			"podCIDRs (ipam.mode cluster-pool) and " +
			"Services addresses out of CiliumLoadBalancerIPPools. Nodes forward without it. Of several one leads.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return f.run(ctx)
		},
	}
	cmd.Flags().StringVar(&f.file, "config", "", "configuration file, the agents' own; keys as Cilium's Helm values")
	addLogFormat(cmd, &f.logFormat)
	cmd.Flags().StringVar(&f.kubeConfig, "kubeconfig", "", "how to get to the API server (kubeConfigPath)")
	cmd.Flags().BoolVar(&f.leaderElect, "leader-elect", true, "work only while leading, by a Lease")
	cmd.Flags().StringVar(&f.namespace, "namespace", "",
		"namespace of the Lease (default "+namespaceEnv+", or kube-system)")
	cmd.Flags().StringVar(&f.listen, "listen", ":9234", "address for /healthz and /metrics; empty: none")
	cmd.Flags().StringVar(&f.metrics, "prometheus-listen", "", "another address for /metrics, as :9963; empty: none")
	cmd.Flags().BoolVar(&f.migrate, "migrate-from-cilium", false,
		"go on where Cilium runs, and take its CustomResourceDefinitions over")
	h := &f.certificates
	cmd.Flags().StringSliceVar(&h.Kinds, "hubble-certificates", nil,
		"certificates to make and renew, of "+strings.Join(operator.HubbleKinds(), ", "))
	cmd.Flags().DurationVar(&h.Validity, "hubble-certificate-validity", 365*24*time.Hour,
		"of certificates; two thirds of it later they are renewed")
	cmd.Flags().StringSliceVar(&h.ServerNames, "hubble-server-names", nil,
		"further DNS names and addresses in the certificate of nodes")
	cmd.Flags().StringSliceVar(&h.RelayNames, "hubble-relay-names", nil, "the same of relays")
	cmd.Flags().StringSliceVar(&h.MetricsNames, "hubble-metrics-names", nil, "the same of servers of metrics")
	return cmd
}

// hubbleCertificates are those that the flags ask for.
func (f *operatorFlags) hubbleCertificates(cluster string) ([]operator.Certificate, error) {
	f.certificates.Cluster = cluster
	if f.certificates.Validity < time.Hour {
		return nil, fmt.Errorf("--hubble-certificate-validity %s: want an hour or more", f.certificates.Validity)
	}
	list, err := f.certificates.Certificates()
	if err != nil {
		return nil, fmt.Errorf("--hubble-certificates: %w", err)
	}
	return list, nil
}

func (f *operatorFlags) run(ctx context.Context) error {
	c, err := config.Load(f.file, config.Flag{Name: "--kubeconfig", Key: "kubeConfigPath", Value: f.kubeConfig},
		config.Flag{Name: logFormatFlag, Key: "myelin.logFormat", Value: f.logFormat})
	if err != nil {
		return err
	}
	if !c.Kubernetes() {
		return errors.New("an operator needs an API server, and the configuration has the cluster read from elsewhere")
	}
	log, err := logs.New(os.Stderr, c.Myelin.LogFormat, c.Debug, nil)
	if err != nil {
		return err
	}
	server, err := kube.NewServer(kube.Options{
		KubeConfig: c.KubeConfigPath, Account: kube.ServiceAccount, Host: c.K8sServiceHost, Port: c.K8sServicePort,
		Env:   os.Getenv,
		Agent: "myelin-operator/" + version, QPS: operatorQPS,
	})
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host name: %w", err)
	}
	if f.namespace == "" {
		f.namespace = strings.TrimSpace(os.Getenv(namespaceEnv))
	}
	if f.namespace == "" {
		f.namespace = "kube-system"
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	certificates, err := f.hubbleCertificates(c.ClusterName)
	if err != nil {
		return err
	}
	o, err := operator.New(operator.Params{
		Config: c, Certificates: certificates, Server: server, Log: log, Now: time.Now, LeaderElect: f.leaderElect,
		Namespace: f.namespace, Identity: host + "_" + rand.String(8), MigrateFromCilium: f.migrate, Registry: registry,
	})
	if err != nil {
		return err
	}
	for _, listen := range []string{f.listen, f.metrics} {
		if listen == "" {
			continue
		}
		close, err := serveHTTP(listen, o.Handler(), log)
		if err != nil {
			return err
		}
		defer close()
	}
	return o.Run(ctx)
}

// serveHTTP serves until close is called.
func serveHTTP(listen string, handler http.Handler, log *slog.Logger) (close func(), err error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("serve HTTP on %s: %w", listen, err)
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP is not served any more", "error", err)
		}
	}()
	return func() { s.Close() }, nil
}
