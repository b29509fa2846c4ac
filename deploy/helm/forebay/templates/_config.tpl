{{/*
The node's configuration: the chart's own part (paths, sockets, ports, other nodes) and the values'.
@NODE_NAME@ and @POD_ADDRESS@ differ from node to node; an init container puts them in.
*/}}
{{- define "forebay.config" -}}
{{- $daemon := dict "socket" "/run/forebay/forebayd.sock" "state" "/var/lib/forebay" "http" "0.0.0.0:9480" -}}
{{- if .Values.api.tokenSecret -}}
{{- $_ := set $daemon "token_file" "/etc/forebay-token/token" -}}
{{- end -}}
{{- if .Values.api.tls.enabled -}}
{{- $_ := set $daemon "http_tls" (dict "cert" "/etc/forebay-api/tls.crt" "key" "/etc/forebay-api/tls.key") -}}
{{- $_ := set $daemon "http_names" (list (include "forebay.apiName" .)) -}}
{{- end -}}
{{- $config := dict "daemon" (merge $daemon (default dict .Values.config.daemon)) -}}
{{- $tiers := list -}}
{{- range .Values.tiers -}}
{{- $tier := omit . "hostPath" -}}
{{- if .hostPath -}}
{{- $_ := set $tier "path" (printf "/cache/%s" .name) -}}
{{- end -}}
{{- $tiers = append $tiers $tier -}}
{{- end -}}
{{- $_ := set $config "tier" $tiers -}}
{{- $tenants := list -}}
{{- $listens := list -}}
{{- range .Values.tenants -}}
{{- $tenants = append $tenants (omit . "group" "mode") -}}
{{- $listen := dict "path" (printf "/run/forebay-tenants/%s/forebayd.sock" .name) "tenant" .name -}}
{{- $listens = append $listens (merge $listen (pick . "group" "mode")) -}}
{{- end -}}
{{- if $tenants -}}
{{- $_ := set $config "tenant" $tenants -}}
{{- $_ := set $config "listen" $listens -}}
{{- end -}}
{{- range $section := list "source" "dataset" "checkpoint" "prices" "leases" -}}
{{- with get $.Values.config $section -}}
{{- $_ := set $config $section . -}}
{{- end -}}
{{- end -}}
{{- with .Values.config.audit -}}
{{- $_ := set $config "audit" (merge (dict "path" "/var/lib/forebay/audit.jsonl") .) -}}
{{- end -}}
{{- if .Values.cluster.enabled -}}
{{- $peers := printf "%s-peers.%s.svc" (include "forebay.fullname" .) .Release.Namespace -}}
{{- $cluster := dict "name" "@NODE_NAME@" "listen" "0.0.0.0:9481" "address" "@POD_ADDRESS@:9481" -}}
{{- $_ := set $cluster "cert" "/etc/forebay-peers/@NODE_NAME@/tls.crt" -}}
{{- $_ := set $cluster "key" "/etc/forebay-peers/@NODE_NAME@/tls.key" -}}
{{- $_ := set $cluster "ca" "/etc/forebay-peers/@NODE_NAME@/ca.crt" -}}
{{- $_ := set $cluster "group" .Values.cluster.group -}}
{{- $_ := set $cluster "weight" .Values.cluster.weight -}}
{{- with .Values.cluster.serve -}}
{{- $_ := set $cluster "serve" . -}}
{{- end -}}
{{- $_ := set $cluster "members" (dict "dns" $peers "port" 9481) -}}
{{- $_ := set $config "cluster" $cluster -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
