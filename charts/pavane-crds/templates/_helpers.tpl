{{- define "pavane-crds.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pavane
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.crds.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pavane-crds.annotations" -}}
{{- if .Values.crds.keep }}
helm.sh/resource-policy: keep
{{- end }}
{{- with .Values.crds.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
