package controller

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// WithStatus is a copy of an object whose status says what is there of it. Objects that own no Pods are returned as
// they are.
func (c *Cluster) WithStatus(o Object) Object {
	switch o := o.(type) {
	case *appsv1.Deployment:
		d := o.DeepCopy()
		d.Status = c.deploymentStatus(o)
		return d
	case *appsv1.ReplicaSet:
		rs := o.DeepCopy()
		pods := active(c.PodsOf(o))
		ready := count(pods, IsReady)
		rs.Status = appsv1.ReplicaSetStatus{
			Replicas: int32(len(pods)), FullyLabeledReplicas: int32(len(pods)), ReadyReplicas: ready,
			AvailableReplicas:  ready,
			ObservedGeneration: o.Generation,
		}
		return rs
	case *appsv1.StatefulSet:
		s := o.DeepCopy()
		s.Status = c.statefulSetStatus(o)
		return s
	case *appsv1.DaemonSet:
		d := o.DeepCopy()
		d.Status = c.daemonSetStatus(o)
		return d
	case *batchv1.Job:
		j := o.DeepCopy()
		j.Status = c.jobStatus(o)
		return j
	}
	return o
}

func (c *Cluster) deploymentStatus(d *appsv1.Deployment) appsv1.DeploymentStatus {
	current, old := c.replicaSetsOf(d)
	st := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	if current != nil {
		pods := active(c.PodsOf(current))
		st.UpdatedReplicas, st.Replicas, st.ReadyReplicas = int32(len(pods)), int32(len(pods)), count(pods, IsReady)
	}
	for _, rs := range old {
		pods := active(c.PodsOf(rs))
		st.Replicas += int32(len(pods))
		st.ReadyReplicas += count(pods, IsReady)
	}
	want := value(d.Spec.Replicas, 1)
	st.AvailableReplicas = st.ReadyReplicas
	st.UnavailableReplicas = max(0, want-st.AvailableReplicas)
	_, most := limits(d, want)
	available := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "MinimumReplicasUnavailable",
		Message: "Deployment does not have minimum availability.",
	}
	if st.AvailableReplicas >= want-most {
		available.Status, available.Reason = corev1.ConditionTrue, "MinimumReplicasAvailable"
		available.Message = "Deployment has minimum availability."
	}
	st.Conditions = []appsv1.DeploymentCondition{available}
	return st
}

func (c *Cluster) statefulSetStatus(s *appsv1.StatefulSet) appsv1.StatefulSetStatus {
	pods := active(c.PodsOf(s))
	hash := hashOf(&s.Spec.Template)
	ready := count(pods, IsReady)
	updated := count(pods, func(pod *corev1.Pod) bool {
		return pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash
	})
	return appsv1.StatefulSetStatus{
		ObservedGeneration: s.Generation, Replicas: int32(len(pods)), ReadyReplicas: ready, AvailableReplicas: ready,
		UpdatedReplicas: updated, CurrentReplicas: int32(len(pods)) - updated, UpdateRevision: s.Name + "-" + hash,
	}
}

func (c *Cluster) daemonSetStatus(d *appsv1.DaemonSet) appsv1.DaemonSetStatus {
	nodes := c.nodesOf(d)
	hash := hashOf(&d.Spec.Template)
	st := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: int32(len(nodes))}
	for _, pod := range active(c.PodsOf(d)) {
		if !slices.Contains(nodes, pod.Spec.NodeName) {
			st.NumberMisscheduled++
			continue
		}
		st.CurrentNumberScheduled++
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
			st.UpdatedNumberScheduled++
		}
		if IsReady(pod) {
			st.NumberReady++
		}
	}
	st.NumberAvailable, st.NumberUnavailable = st.NumberReady, max(0, st.DesiredNumberScheduled-st.NumberReady)
	return st
}

func (c *Cluster) jobStatus(j *batchv1.Job) batchv1.JobStatus {
	s := c.jobState(j)
	ready := count(s.active, IsReady)
	st := batchv1.JobStatus{Active: int32(len(s.active)), Ready: &ready, Succeeded: s.succeeded, Failed: s.failed}
	switch c.jobResult(j) {
	case "Failed":
		st.Conditions = []batchv1.JobCondition{{
			Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonBackoffLimitExceeded,
			Message: "Job has reached the specified backoff limit",
		}}
	case "Complete":
		st.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	case "Suspended":
		st.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
	}
	return st
}
