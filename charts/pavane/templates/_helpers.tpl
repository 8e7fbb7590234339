{{- /* Helpers. Those of a component take a dictionary: root = the top context, component = "operator" or "api". */ -}}

{{- define "pavane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "pavane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains (include "pavane.name" .) .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pavane.name" .) | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "pavane.componentName" -}}
{{- printf "%s-%s" (include "pavane.fullname" .root) .component -}}
{{- end }}

{{- define "pavane.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pavane
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "pavane.selectorLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pavane.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pavane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "pavane.serviceAccountName" -}}
{{- default (include "pavane.componentName" .) (index .root.Values .component).serviceAccount.name -}}
{{- end }}

{{- /* The common image; `component` may name another one. A digest wins over a tag. */ -}}
{{- define "pavane.image" -}}
{{- $image := .root.Values.image -}}
{{- $own := (index .root.Values .component).image -}}
{{- $repository := default $image.repository $own.repository -}}
{{- $digest := ternary $own.digest $image.digest (or (ne $own.repository "") (ne $own.digest "")) -}}
{{- if $digest -}}
{{- printf "%s@%s" $repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (coalesce $own.tag $image.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "pavane.otlpEndpoint" -}}
{{- if .Values.telemetry.otlpEndpoint -}}
{{- .Values.telemetry.otlpEndpoint -}}
{{- else -}}
{{- include "pavane.apiUrl" . -}}
{{- end -}}
{{- end }}

{{- /* Of the control plane; empty where there is none. */ -}}
{{- define "pavane.apiUrl" -}}
{{- if .Values.api.enabled -}}
{{- printf "http://%s.%s.svc:8000" (include "pavane.componentName" (dict "root" . "component" "api")) .Release.Namespace -}}
{{- end -}}
{{- end }}

{{- /* Audience of the tokens that go with spans; empty where another collector takes them, or nobody asks. */ -}}
{{- define "pavane.otlpAudience" -}}
{{- if and .Values.telemetry.requireToken .Values.api.enabled (not .Values.telemetry.otlpEndpoint) -}}
pavane-otlp
{{- end -}}
{{- end }}

{{- define "pavane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "pavane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What every container of ours gets to know: its pod, and where spans go. */ -}}
{{- define "pavane.podEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- with include "pavane.otlpEndpoint" .root }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if include "pavane.otlpAudience" .root }}
- name: PAVANE_OTLP_TOKEN_FILE
  value: /etc/pavane/otlp/token
{{- end }}
{{- end }}

{{- define "pavane.extraEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Where the pods of a component may run. */ -}}
{{- define "pavane.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* Pod template of a component; `env` and `volumes` are what it has beyond the common ones. */ -}}
{{- define "pavane.podTemplate" -}}
{{- $own := index .root.Values .component -}}
metadata:
  labels:
    {{- include "pavane.labels" . | nindent 4 }}
    {{- with $own.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $own.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "pavane.serviceAccountName" . }}
  # Else Service pavane-api would set PAVANE_API_PORT, which is a setting of ours.
  enableServiceLinks: false
  securityContext:
    {{- include "pavane.podSecurity" . | nindent 4 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $own.terminationGracePeriodSeconds }}
  containers:
    - name: {{ .component }}
      image: {{ include "pavane.image" . | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [pavane, {{ .component }}]
      env:
        {{- include "pavane.podEnv" . | nindent 8 }}
        {{- with .env }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "pavane.extraEnv" $own.extraEnv | nindent 8 }}
      ports:
        {{- with .ports }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: ops
          containerPort: 8080
      startupProbe:
        httpGet: {path: /livez, port: 8080}
        periodSeconds: 1
        timeoutSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: 8080}
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: 8080}
        periodSeconds: 2
        timeoutSeconds: 5
      securityContext:
        {{- include "pavane.containerSecurity" . | nindent 8 }}
      {{- with $own.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if include "pavane.otlpAudience" .root }}
        - name: otlp
          mountPath: /etc/pavane/otlp
          readOnly: true
        {{- end }}
        {{- with .mounts }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with include "pavane.otlpAudience" .root }}
    - name: otlp
      projected:
        sources:
          - serviceAccountToken:
              audience: {{ . }}
              path: token
    {{- end }}
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- with include "pavane.scheduling" $own }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* Pod of a hook: runs `pavane` once with `.arguments` as the service account `.account`. */ -}}
{{- define "pavane.hookPodSpec" -}}
restartPolicy: Never
serviceAccountName: {{ .account }}
securityContext:
  {{- include "pavane.podSecurity" . | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
containers:
  - name: pavane
    image: {{ include "pavane.image" (dict "root" .root "component" "operator") | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: {{ concat (list "pavane" "helm") .arguments | toJson }}
    securityContext:
      {{- include "pavane.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 10m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
volumes:
  - name: tmp
    emptyDir: {}
{{- with include "pavane.scheduling" .root.Values.operator }}
{{ . }}
{{- end }}
{{- end }}
