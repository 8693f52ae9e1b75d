// A client in a language that knows C only through its calling convention. Usage: client MODEL
use std::ffi::{c_char, c_void, CStr, CString};

#[repr(C)]
struct ModelParams {
    model_path: *const c_char,
    tokenizer_config_path: *const c_char,
    sizes: [i32; 4],
    texts: [*const c_char; 3],
    switches: [i32; 2],
    more_texts: [*const c_char; 3],
    jump_forward: i32,
    device: i32,
    gpu_memory_utilization: f64,
    kv_cache_memory_bytes: i64,
    language_model_only: i32,
    limit_mm_per_prompt: *const c_char,
}

#[repr(C, align(8))]
struct SamplingParams([u8; 136]);

type TokenCallback = extern "C" fn(*const c_char, bool, *mut c_void) -> bool;

extern "C" {
    fn vllm_model_params_default() -> ModelParams;
    fn vllm_sampling_params_default() -> SamplingParams;
    fn vllm_engine_load(params: *const ModelParams, out: *mut *mut c_void) -> i32;
    fn vllm_engine_free(engine: *mut c_void);
    fn vllm_complete_stream(
        engine: *mut c_void, prompt: *const c_char, params: *const SamplingParams, callback: TokenCallback, user: *mut c_void,
    ) -> i32;
    fn vllm_last_error() -> *const c_char;
}

extern "C" fn collect(delta: *const c_char, _finished: bool, user: *mut c_void) -> bool {
    let text = unsafe { &mut *(user as *mut String) };
    text.push_str(unsafe { CStr::from_ptr(delta) }.to_str().expect("well-formed UTF-8"));
    true
}

fn complete(engine: usize) -> String {
    let mut text = String::new();
    let prompt = CString::new("AB").unwrap();
    unsafe {
        let mut sampling = vllm_sampling_params_default();
        sampling.0[0..4].copy_from_slice(&0f32.to_ne_bytes());
        let user = &mut text as *mut String as *mut c_void;
        assert_eq!(vllm_complete_stream(engine as *mut c_void, prompt.as_ptr(), &sampling, collect, user), 0);
    }
    text
}

fn main() {
    assert_eq!(std::mem::size_of::<ModelParams>(), 128);
    let path = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    unsafe {
        let mut params = vllm_model_params_default();
        params.model_path = path.as_ptr();
        params.device = 1;
        let mut engine: *mut c_void = std::ptr::null_mut();
        let status = vllm_engine_load(&params, &mut engine);
        assert_eq!(status, 0, "{:?}", CStr::from_ptr(vllm_last_error()));
        let handle = engine as usize;
        let expected = complete(handle);
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(move || complete(handle))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
        vllm_engine_free(engine);
    }
}
