#!/bin/sh
# Prints deploy/prometheus/alerts.yaml as a PrometheusRule, the resource from which the Prometheus Operator reads alerts.
set -eu
cat <<END
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: { name: npi-email }
spec:
END
sed 's/^./  &/' "$(dirname "$0")/../prometheus/alerts.yaml"
