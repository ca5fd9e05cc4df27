BEGIN TRANSACTION;
CREATE TABLE gpurun_baselines (
	id TEXT NOT NULL, 
	record TEXT NOT NULL, 
	benchmark TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	branch TEXT, 
	commit_hash TEXT, 
	accepted_by TEXT NOT NULL, 
	time DATETIME NOT NULL, 
	reason TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "gpurun_baselines" VALUES('20261122-024720-85a75ed099c0','r0001','vision','950078a8bbca2b78','main','0000000000000000000000000000000000000001','Ada','2026-11-22 02:47:20.172142','the new loader is worth it','{
 "id": "20261122-024720-85a75ed099c0",
 "record": "r0001",
 "benchmark": "vision",
 "fingerprint": "950078a8bbca2b78",
 "branch": "main",
 "commit": "0000000000000000000000000000000000000001",
 "accepted_by": "Ada",
 "time": "2026-11-22T02:47:20.172142+00:00",
 "reason": "the new loader is worth it",
 "schema": "gpurun/baseline@1"
}
');
CREATE TABLE gpurun_benchmarks (
	id TEXT NOT NULL, 
	benchmark TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	commit_hash TEXT, 
	branch TEXT, 
	dirty BOOLEAN, 
	time DATETIME NOT NULL, 
	status TEXT NOT NULL, 
	samples_per_second DOUBLE, 
	step_time_ms DOUBLE, 
	gpu_utilization_percent DOUBLE, 
	peak_memory_bytes BIGINT, 
	energy_joules DOUBLE, 
	device TEXT, 
	device_count BIGINT, 
	batch_size DOUBLE, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "gpurun_benchmarks" VALUES('r0000','vision','950078a8bbca2b78','0000000000000000000000000000000000000000','main',0,'2026-11-01 12:00:00.000000','completed',1000.0,10.0,81.5,3221225472,NULL,'NVIDIA H200',1,32.0,'{
 "id": "r0000",
 "benchmark": "vision",
 "script": "train.py",
 "args": [
  "--epochs",
  "1"
 ],
 "commit": "0000000000000000000000000000000000000000",
 "branch": "main",
 "dirty": false,
 "time": "2026-11-01T12:00:00.000000+00:00",
 "status": "completed",
 "samples_per_second": 1000.0,
 "step_time_ms": {
  "mean": 10.0,
  "p50": 9.5,
  "p95": 12.0,
  "p99": 15.0
 },
 "gpu_utilization_percent": 81.5,
 "gpu_utilization_source": "gpm_sm_activity",
 "peak_memory_bytes": 3221225472,
 "energy_joules": null,
 "joules_per_sample": null,
 "device": "NVIDIA H200",
 "device_count": 1,
 "batch_size": 32.0,
 "steps": 60,
 "launches": [
  {
   "status": "completed",
   "samples_per_second": 1000.0,
   "step_time_ms": {
    "mean": 10.0,
    "p50": 9.5,
    "p95": 12.0,
    "p99": 15.0
   },
   "gpu_utilization_percent": 81.5,
   "gpu_utilization_source": "gpm_sm_activity",
   "peak_memory_bytes": 3221225472,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": 50,
   "measured_seconds": 0.5,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": null
  },
  {
   "status": "failed",
   "samples_per_second": null,
   "step_time_ms": null,
   "gpu_utilization_percent": null,
   "gpu_utilization_source": null,
   "peak_memory_bytes": null,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": null,
   "measured_seconds": null,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": "exit code 1: out of memory"
  }
 ],
 "fingerprint": {
  "device": "NVIDIA H200",
  "device_count": 1,
  "driver": "570.86",
  "torch": "2.13.0",
  "script": "train.py",
  "settings": {
   "tf32": true
  }
 },
 "gpurun_version": "0.1.0",
 "error": null,
 "schema": "gpurun/benchmark@1"
}
');
INSERT INTO "gpurun_benchmarks" VALUES('r0001','vision','950078a8bbca2b78','0000000000000000000000000000000000000001','main',0,'2026-11-01 13:00:00.000000','completed',1001.0,10.0,81.5,3221225472,NULL,'NVIDIA H200',1,32.0,'{
 "id": "r0001",
 "benchmark": "vision",
 "script": "train.py",
 "args": [
  "--epochs",
  "1"
 ],
 "commit": "0000000000000000000000000000000000000001",
 "branch": "main",
 "dirty": false,
 "time": "2026-11-01T13:00:00.000000+00:00",
 "status": "completed",
 "samples_per_second": 1001.0,
 "step_time_ms": {
  "mean": 10.0,
  "p50": 9.5,
  "p95": 12.0,
  "p99": 15.0
 },
 "gpu_utilization_percent": 81.5,
 "gpu_utilization_source": "gpm_sm_activity",
 "peak_memory_bytes": 3221225472,
 "energy_joules": null,
 "joules_per_sample": null,
 "device": "NVIDIA H200",
 "device_count": 1,
 "batch_size": 32.0,
 "steps": 60,
 "launches": [
  {
   "status": "completed",
   "samples_per_second": 1000.0,
   "step_time_ms": {
    "mean": 10.0,
    "p50": 9.5,
    "p95": 12.0,
    "p99": 15.0
   },
   "gpu_utilization_percent": 81.5,
   "gpu_utilization_source": "gpm_sm_activity",
   "peak_memory_bytes": 3221225472,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": 50,
   "measured_seconds": 0.5,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": null
  },
  {
   "status": "failed",
   "samples_per_second": null,
   "step_time_ms": null,
   "gpu_utilization_percent": null,
   "gpu_utilization_source": null,
   "peak_memory_bytes": null,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": null,
   "measured_seconds": null,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": "exit code 1: out of memory"
  }
 ],
 "fingerprint": {
  "device": "NVIDIA H200",
  "device_count": 1,
  "driver": "570.86",
  "torch": "2.13.0",
  "script": "train.py",
  "settings": {
   "tf32": true
  }
 },
 "gpurun_version": "0.1.0",
 "error": null,
 "schema": "gpurun/benchmark@1"
}
');
INSERT INTO "gpurun_benchmarks" VALUES('r0002','vision','950078a8bbca2b78','0000000000000000000000000000000000000002','main',0,'2026-11-01 14:00:00.000000','completed',1002.0,10.0,81.5,3221225472,NULL,'NVIDIA H200',1,32.0,'{
 "id": "r0002",
 "benchmark": "vision",
 "script": "train.py",
 "args": [
  "--epochs",
  "1"
 ],
 "commit": "0000000000000000000000000000000000000002",
 "branch": "main",
 "dirty": false,
 "time": "2026-11-01T14:00:00.000000+00:00",
 "status": "completed",
 "samples_per_second": 1002.0,
 "step_time_ms": {
  "mean": 10.0,
  "p50": 9.5,
  "p95": 12.0,
  "p99": 15.0
 },
 "gpu_utilization_percent": 81.5,
 "gpu_utilization_source": "gpm_sm_activity",
 "peak_memory_bytes": 3221225472,
 "energy_joules": null,
 "joules_per_sample": null,
 "device": "NVIDIA H200",
 "device_count": 1,
 "batch_size": 32.0,
 "steps": 60,
 "launches": [
  {
   "status": "completed",
   "samples_per_second": 1000.0,
   "step_time_ms": {
    "mean": 10.0,
    "p50": 9.5,
    "p95": 12.0,
    "p99": 15.0
   },
   "gpu_utilization_percent": 81.5,
   "gpu_utilization_source": "gpm_sm_activity",
   "peak_memory_bytes": 3221225472,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": 50,
   "measured_seconds": 0.5,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": null
  },
  {
   "status": "failed",
   "samples_per_second": null,
   "step_time_ms": null,
   "gpu_utilization_percent": null,
   "gpu_utilization_source": null,
   "peak_memory_bytes": null,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": null,
   "measured_seconds": null,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": "exit code 1: out of memory"
  }
 ],
 "fingerprint": {
  "device": "NVIDIA H200",
  "device_count": 1,
  "driver": "570.86",
  "torch": "2.13.0",
  "script": "train.py",
  "settings": {
   "tf32": true
  }
 },
 "gpurun_version": "0.1.0",
 "error": null,
 "schema": "gpurun/benchmark@1"
}
');
INSERT INTO "gpurun_benchmarks" VALUES('r0003','vision','950078a8bbca2b78','0000000000000000000000000000000000000003',NULL,0,'2026-11-01 15:00:00.000000','failed',NULL,NULL,NULL,NULL,NULL,'NVIDIA H200',1,32.0,'{
 "id": "r0003",
 "benchmark": "vision",
 "script": "train.py",
 "args": [
  "--epochs",
  "1"
 ],
 "commit": "0000000000000000000000000000000000000003",
 "branch": null,
 "dirty": false,
 "time": "2026-11-01T15:00:00.000000+00:00",
 "status": "failed",
 "samples_per_second": null,
 "step_time_ms": null,
 "gpu_utilization_percent": null,
 "gpu_utilization_source": null,
 "peak_memory_bytes": null,
 "energy_joules": null,
 "joules_per_sample": null,
 "device": "NVIDIA H200",
 "device_count": 1,
 "batch_size": 32.0,
 "steps": 60,
 "launches": [
  {
   "status": "failed",
   "samples_per_second": null,
   "step_time_ms": null,
   "gpu_utilization_percent": null,
   "gpu_utilization_source": null,
   "peak_memory_bytes": null,
   "energy_joules": null,
   "joules_per_sample": null,
   "measured_steps": null,
   "measured_seconds": null,
   "throttle_reasons": [],
   "foreign_processes": null,
   "run_dir": null,
   "error": "exit code 1: out of memory"
  }
 ],
 "fingerprint": {
  "device": "NVIDIA H200",
  "device_count": 1,
  "driver": "570.86",
  "torch": "2.13.0",
  "script": "train.py",
  "settings": {
   "tf32": true
  }
 },
 "gpurun_version": "0.1.0",
 "error": "exit code 1",
 "schema": "gpurun/benchmark@1"
}
');
CREATE TABLE gpurun_schema (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "gpurun_schema" VALUES(1);
CREATE INDEX gpurun_benchmarks_history ON gpurun_benchmarks (benchmark, fingerprint, time);
COMMIT;
